"""From a parsed request of any API to its reply: start the answers, then collect or stream them.

An API is a codec: it parses its body into a `GenerationRequest` and writes deltas in its own shape.
Everything between the two is here, once for all APIs.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from twostroke.cache.explain import join_salt
from twostroke.dataclass import dataclass
from twostroke.errors import TwoStrokeError
from twostroke.generation.answer import Delta, merged
from twostroke.meters.timings import server_timing, timings
from twostroke.record import RequestRecord
from twostroke.request import SamplingParams
from twostroke.scheduler.progress import PrefillProgress
from twostroke.server.answers import Answers, start_answers
from twostroke.server.errors import internal_error
from twostroke.server.http.connection import SSE_COMMENT, EventStream, unless_gone
from twostroke.server.http.middleware import Caller, Facts
from twostroke.server.prompts import Prompt
from twostroke.server.reasoning_request import Reasoning, with_reasoning
from twostroke.server.service import Service
from twostroke.server.tools import Tools, form_of

PROGRESS_TICK_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """The generation that a request of any API asks for.

    history: the policy for a conversation that outgrows the context. answer_schema: the JSON
    schema that the answer keeps to. count: answers to each prompt. reasoning: how much the
    model shall reason first; None: as its template has it.
    """

    prompts: Sequence[Prompt]
    params: SamplingParams
    history: str = "refuse"
    tools: Tools = field(default_factory=Tools)
    answer_schema: Mapping[str, Any] | None = None
    count: int = 1
    cache_salt: str = ""
    tells_progress: bool = False
    reasoning: Reasoning | None = None


@dataclass(slots=True)
class ReplyState:
    """The facts of one reply, gathered while it is generated.

    bound: the limit that set max_tokens. trimmed: the report of messages left out of the prompt.
    Units: start_s in seconds on the monotonic clock; created in whole seconds since 1970.
    """

    service: Service
    facts: Facts
    caller: Caller
    start_s: float
    created: int
    num_prompt: int = 0
    num_output: int = 0
    bound: str | None = None
    seed: int | None = None
    trimmed: Mapping[str, Any] | None = None
    records: list[RequestRecord] = field(default_factory=list)

    def take(self, delta: Delta) -> None:
        """Count one delta."""
        self.num_output += len(delta.token_ids)
        if delta.record is not None:
            self.records.append(delta.record)
            self.facts.records.append(delta.record)

    @property
    def record(self) -> RequestRecord | None:
        """The record of the first answer that has ended."""
        return self.records[0] if self.records else None

    def salt(self, cache_salt: str | None) -> str:
        """Return the salt of the prefix cache: the key's and the caller's own."""
        return join_salt(self.caller.salt, cache_salt or "")

    def report(self) -> dict[str, Any]:
        """Return the fields that this server adds to every API's reply.

        timings: the block that llama.cpp's clients read. twostroke: records, and the server's own
        decisions.
        """
        return {
            "timings": timings(self.record),
            "twostroke": {
                "records": [record.to_dict() for record in self.records],
                "seed": self.seed,
                "max_tokens_from": self.bound,
                "history": self.trimmed,
            },
        }


class Codec:
    """How one API writes one reply. Subclasses write `delta`, `whole` and `error`.

    The frames of a stream are bytes ready to send, empty where there is nothing to send.
    keep_alive: the frame of a moment of silence.
    """

    media_type = "text/event-stream"
    keep_alive = SSE_COMMENT

    def __init__(self, reply: ReplyState) -> None:
        self.reply = reply

    def start(self) -> bytes:
        """Return the frames before the first delta."""
        return b""

    def delta(self, delta: Delta) -> bytes:
        """Return the frames of one delta; the last delta of an answer has the finish reason."""
        raise NotImplementedError

    def end(self) -> bytes:
        """Return the frames after the last delta."""
        return b""

    def error(self, error: TwoStrokeError) -> bytes:
        """Return the frames of an error that ends the stream."""
        raise NotImplementedError

    def progress(self, progress: PrefillProgress, eta_s: float | None) -> bytes:
        """Return the frame that tells how far the prompt is, and when it will be done."""
        return self.keep_alive

    def whole(self, answers: Sequence[Delta]) -> dict[str, Any]:
        """Return the body of a reply that does not stream; each delta is a whole answer."""
        raise NotImplementedError


def accept(request: Request, *, model: str | None, user: str | None, is_stream: bool) -> ReplyState:
    """Begin the reply to a request whose body has been read.

    Raises:
        UnknownModel, NotReady: the request cannot be answered here, or not now.
    """
    service: Service = request.app.state.service
    facts: Facts = request.state.facts
    service.check_ready()
    facts.model, facts.user, facts.stream = service.check_model(model), user, is_stream
    facts.caller = request.state.caller.name
    return ReplyState(service, facts, request.state.caller, time.monotonic(), int(time.time()))


async def generate(request: Request, asked: GenerationRequest, codec: Codec) -> Response:
    """Return the reply; no answer runs any more when it has ended or the client has gone."""
    reply = codec.reply
    if not reply.facts.stream:
        return await unless_gone(request, _collected(asked, codec))
    answers = await unless_gone(request, _started(reply, asked))
    limits = reply.service.limits

    def sign_of_life() -> bytes:
        status, request_id = reply.service.engine.status, answers.first_request.id
        progress = status.progress.get(request_id)
        if progress is None or reply.num_output or not asked.tells_progress:
            return codec.keep_alive
        return codec.progress(progress, status.eta_s(request_id))

    async def close() -> None:
        await asyncio.shield(answers.close())  # even a cancelled reply must tell the engine

    return EventStream(
        _frames(answers, codec),
        media_type=codec.media_type,
        sign_of_life=sign_of_life,
        tick_s=PROGRESS_TICK_S if asked.tells_progress else limits.keep_alive_s,
        slow_client_s=limits.slow_client_s,
        on_close=close,
    )


async def _started(reply: ReplyState, asked: GenerationRequest) -> Answers:
    service = reply.service
    bounded = service.admission.bounded(asked.params)
    reply.bound = bounded.bound
    form = None
    if asked.tools.offered or asked.answer_schema is not None:
        form = await form_of(service.prompts, asked.tools, asked.answer_schema)
    asked = replace(asked, prompts=with_reasoning(asked.prompts, asked.reasoning, service.prompts))
    if asked.history == "refuse":
        prompts = [
            await service.prompts.encode(prompt, asked.tools.offered, reply.start_s)
            for prompt in asked.prompts
        ]
    else:
        from twostroke.server.history import fitted_prompt

        prompts = [await fitted_prompt(reply, asked, bounded.params)]
    if form is not None:
        form.check_prompts(prompts)
    reply.num_prompt = sum(prompt.num_tokens for prompt in prompts)
    salt, count = reply.salt(asked.cache_salt), asked.count
    answers = await start_answers(
        service, reply.facts.id, prompts, bounded.params, salt=salt, count=count, form=form
    )
    reply.seed = answers.first_request.seed
    return answers


async def _collected(asked: GenerationRequest, codec: Codec) -> Response:
    reply = codec.reply
    answers = await _started(reply, asked)
    deltas: list[list[Delta]] = [[] for _ in range(answers.num_choices)]
    try:
        async for delta in answers:
            reply.take(delta)
            deltas[delta.index].append(delta)
    finally:
        await answers.close()
    body = codec.whole([merged(own) for own in deltas])
    return JSONResponse(body, headers=server_timing(reply.record))


async def _frames(answers: Answers, codec: Codec) -> AsyncGenerator[bytes, None]:
    reply = codec.reply
    try:
        if frames := codec.start():
            yield frames
        async for delta in answers:
            reply.take(delta)
            if frames := codec.delta(delta):
                yield frames
        if frames := codec.end():
            yield frames
    except Exception as fault:
        if isinstance(fault, TwoStrokeError):
            error = fault
        else:
            error = internal_error()
            traceback.print_exc(file=sys.stderr)
        reply.facts.error = error.code
        yield codec.error(error)
