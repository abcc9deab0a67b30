"""The offline door: a model by name, prompts in, text, ids and the record of both phases out.

from twostroke import LLM, SamplingParams
llm = LLM("smollm2:135m")
for output in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
    print(output.text, output.record.prefill_tok_s)
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from twostroke.build import BuiltEngine, build_engine
from twostroke.config import EngineConfig
from twostroke.dataclass import dataclass
from twostroke.errors import RequestError
from twostroke.events import Observer
from twostroke.model.loaded import LoadedModel, load_model
from twostroke.record import RequestRecord
from twostroke.request import (
    FinishReason,
    MessageSpan,
    Request,
    RequestOutput,
    SamplingParams,
    TokenLogprob,
)
from twostroke.step import BLOCK_SIZE, BlockTable, Phase, Runner, Slice, StepPlan
from twostroke.text.stream import TextStream

Message = Mapping[str, Any]
Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A prompt as the model reads it, and how long that took."""

    token_ids: tuple[int, ...]
    spans: tuple[MessageSpan, ...] = ()
    init_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one step added to one answer. The last one carries the finish reason and the record."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    record: RequestRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One whole answer."""

    text: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprob, ...]
    seed: int
    record: RequestRecord | None


@dataclass(slots=True)
class _Answer:
    """One answer while it is generated."""

    index: int
    request: Request
    stream: TextStream
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    final: Delta | None = None
    ready: deque[Delta | RequestError] = field(default_factory=deque)  # not read yet


class LLM:
    """A loaded model and its engine in this process. Not thread-safe: one caller at a time.

    `observers` see the engine's events, for progress displays.

    Raises:
        ModelError, ConfigError, CapacityError: the model cannot be found, read, run or held.
    """

    def __init__(
        self,
        model: str,
        config: EngineConfig | None = None,
        *,
        observers: Sequence[Observer] = (),
    ) -> None:
        start = time.monotonic()
        self.model: LoadedModel = load_model(model)
        self.built: BuiltEngine = build_engine(
            self.model,
            config or EngineConfig(),
            observers=observers,
            max_waiting=sys.maxsize,  # the caller waits for its own prompts
            max_wait_s=math.inf,
        )
        self.load_s = time.monotonic() - start
        self._engine = self.built.engine
        self._numbers = itertools.count()
        self._scorer: Runner | None = None
        self._open: dict[str, _Answer] = {}

    # Prompts

    def encode(self, prompt: Prompt) -> Encoded:
        """Tokenise a raw prompt, BOS as the tokenizer says; ids pass as they are."""
        start = time.monotonic()
        if isinstance(prompt, str):
            ids = tuple(self.model.tokenizer.encode(prompt, add_special=True))
        else:
            ids = tuple(int(i) for i in prompt)
        return Encoded(token_ids=ids, init_s=time.monotonic() - start)

    def encode_chat(self, messages: Sequence[Message]) -> Encoded:
        """Render the model's chat template and tokenise; user content never becomes control tokens.

        Raises:
            TemplateError: the model has no template, or it refused the messages.
        """
        start = time.monotonic()
        ids, spans = self.model.encode_rendered(self.model.render_chat(messages))
        return Encoded(token_ids=ids, spans=spans, init_s=time.monotonic() - start)

    # Generation

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Generation]:
        """Continue raw prompts, all at once; answers come in the order of the prompts.

        Raises:
            RequestError, CapacityError: a prompt or parameter that cannot be honoured; nothing
            runs.
        """
        return self._run([self.encode(p) for p in _as_list(prompts)], params)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Generation]:
        """Answer one conversation or several, through the model's chat template.

        Raises:
            TemplateError, RequestError, CapacityError: see `encode_chat` and `generate`.
        """
        is_one = bool(conversations) and isinstance(conversations[0], Mapping)
        many: Any = [conversations] if is_one else conversations
        return self._run([self.encode_chat(messages) for messages in many], params)

    def stream(
        self,
        prompt: Prompt | Sequence[Message] | Encoded,
        params: SamplingParams | None = None,
    ) -> Generator[Delta, None, None]:
        """Yield one answer as it is generated; closing the iterator cancels it.

        A sequence of messages goes through the chat template, a string or ids do not.
        """
        encoded = self._encoded(prompt)
        return self._deltas([self._answer(0, encoded, params or SamplingParams())])

    def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability of each token but the first, given those before it.

        Raises:
            RequestError: fewer than two tokens, or ids outside the vocabulary.
        """
        ids = tuple(token_ids)
        self._check_ids(ids)
        if len(ids) < 2:
            raise RequestError("scoring needs two tokens or more", value=len(ids))
        blocks = BlockTable(range(-(-len(ids) // BLOCK_SIZE)))
        scores: list[float] = []
        size = max(self.built.config.prefill_chunk, 2)
        runner = self._score_runner(len(ids))
        for start in range(0, len(ids) - 1, size - 1):
            # The last id of a piece is only a target; it is computed as the first of the next.
            piece = Slice(
                "score", Phase.PREFILL, ids[start : start + size], start, blocks, score=True
            )
            plan = StepPlan(prefill=(piece,), new_blocks=blocks if start == 0 else ())
            scores.extend(runner.run(plan).scores["score"])
        return tuple(scores)

    # Inside

    def _score_runner(self, num_tokens: int) -> Runner:
        """A runner with a cache of its own, so that scoring never touches the engine's blocks."""
        if self._scorer is None or self._scorer.num_blocks * BLOCK_SIZE < num_tokens:
            self._scorer = self.built.new_runner(num_tokens)
        return self._scorer

    def _encoded(self, prompt: Prompt | Sequence[Message] | Encoded) -> Encoded:
        if isinstance(prompt, Encoded):
            return prompt
        if not isinstance(prompt, str) and len(prompt) and isinstance(prompt[0], Mapping):
            return self.encode_chat(prompt)  # type: ignore[arg-type]
        return self.encode(prompt)  # type: ignore[arg-type]

    def _run(
        self,
        prompts: list[Encoded],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Generation]:
        many = _params_list(params, len(prompts))
        answers = [
            self._answer(i, p, q) for i, (p, q) in enumerate(zip(prompts, many, strict=True))
        ]
        for _ in self._deltas(answers):
            pass
        return [_generation(answer) for answer in answers]

    def _answer(self, index: int, prompt: Encoded, params: SamplingParams) -> _Answer:
        self._check_ids(prompt.token_ids)
        self._check_ids(tuple(i for i, _ in params.logit_bias), what="logit_bias")
        request = Request(
            id=f"llm-{next(self._numbers)}",
            prompt_token_ids=prompt.token_ids,
            params=params,
            seed=_drawn_seed() if params.seed is None else params.seed,
            end_token_ids=frozenset() if params.ignore_eos else self.model.end_token_ids,
            arrival_s=time.monotonic(),
            spans=prompt.spans,
            init_s=prompt.init_s,
        )
        return _Answer(index, request, TextStream(self.model.tokenizer, params.stop))

    def _check_ids(self, ids: tuple[int, ...], what: str = "prompt") -> None:
        vocab = self.model.config.vocab_size
        bad = next((i for i in ids if not 0 <= i < vocab), None)
        if bad is not None:
            raise RequestError(
                f"a token id of the {what} is outside the vocabulary",
                value=bad,
                limit=f"[0, {vocab})",
                param=what,
            )

    def _deltas(self, answers: list[_Answer]) -> Generator[Delta, None, None]:
        """Step the engine until these answers have ended.

        What a step gives to answers of another open stream is left for its reader.
        """
        ready: deque[Delta | RequestError] = deque()
        left: set[str] = set()
        try:
            for answer in answers:
                answer.ready = ready
                self._engine.add(answer.request)
                self._open[answer.request.id] = answer
                left.add(answer.request.id)
            while left:
                if not ready:
                    self._step()
                while ready:
                    delta = ready.popleft()
                    if isinstance(delta, RequestError):
                        raise delta
                    if delta.finish_reason is not None:
                        left.remove(answers[delta.index].request.id)
                    yield delta
        finally:
            for request_id in left:
                if self._open.pop(request_id, None) is not None:
                    self._engine.abort(request_id)

    def _step(self) -> None:
        for output in self._engine.step():
            answer = self._open[output.request_id]
            if output.error is not None:
                del self._open[output.request_id]
                answer.ready.append(RequestError(f"request {answer.index} failed: {output.error}"))
                continue
            delta = self._take(answer, output)
            if delta.finish_reason is not None:
                answer.final = delta
                del self._open[output.request_id]
            answer.ready.append(delta)

    def _take(self, answer: _Answer, output: RequestOutput) -> Delta:
        visible = self._visible(answer, output)
        piece = answer.stream.push(visible)
        text, stop, kept = piece.text, piece.stop, output.token_ids
        final = output
        if stop is not None:
            kept = kept[: piece.num_tokens]
            count = len(answer.token_ids) + len(kept)
            final = self._engine.stop(output.request_id, stop, count) or output
        elif output.finish_reason is not None:
            rest = answer.stream.finish()
            text, stop = text + rest.text, rest.stop
        record = final.record
        if stop is not None and record is not None:  # on its last token the engine says length
            record = replace(record, finish=FinishReason.STOP.value)
        answer.texts.append(text)
        answer.token_ids.extend(kept)
        answer.logprobs.extend(output.logprobs[: len(kept)])
        return Delta(
            index=answer.index,
            text=text,
            token_ids=kept,
            logprobs=output.logprobs[: len(kept)],
            finish_reason=FinishReason.STOP if stop is not None else final.finish_reason,
            stop_reason=stop if stop is not None else final.stop_reason,
            record=record,
        )

    def _visible(self, answer: _Answer, output: RequestOutput) -> tuple[int, ...]:
        """Ids that are text: the end token that closed the answer is not."""
        ids = output.token_ids
        ends = answer.request.end_token_ids | frozenset(answer.request.params.stop_token_ids)
        if output.finish_reason is FinishReason.STOP and ids and ids[-1] in ends:
            return ids[:-1]
        return ids


def _drawn_seed() -> int:
    return int.from_bytes(os.urandom(7), "little") >> 3  # 53 bits: exact in JSON


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_list(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(
            "one set of parameters a prompt is needed", value=len(params), limit=count
        )
    return list(params)


def _generation(answer: _Answer) -> Generation:
    final = answer.final
    assert final is not None and final.finish_reason is not None
    return Generation(
        text="".join(answer.texts),
        prompt_token_ids=answer.request.prompt_token_ids,
        token_ids=tuple(answer.token_ids),
        finish_reason=final.finish_reason,
        stop_reason=final.stop_reason,
        logprobs=tuple(answer.logprobs),
        seed=answer.request.seed,
        record=final.record,
    )
