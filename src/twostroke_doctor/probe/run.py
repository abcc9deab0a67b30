"""Sends a plan to an endpoint and makes records of its replies.

The judged wait is a follow-up turn's: a prompt that was just sent, again, then a long answer, with
the load of a first contact and the queue of a second caller where there are any. Unseen prompts of
the same length are controls: they give the saving of a hit, and are no part of the wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

from twostroke.errors import TwoStrokeError
from twostroke.record import RequestRecord
from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.probe.client import Client, ProbeFailed
from twostroke_doctor.probe.machine import cpu_busy_share
from twostroke_doctor.probe.metrics import read_metrics, window_between
from twostroke_doctor.probe.plan import PAIR, ProbePlan, Step
from twostroke_doctor.probe.record import CONTROL, record_of, settle
from twostroke_doctor.probe.reply import TimedReply, first_model

ENGINE = "endpoint"
_JUDGED = frozenset({"first", "again", "long"})
_CHAT = "/v1/chat/completions"


def run_plan(
    plan: ProbePlan,
    *,
    say: Callable[[str], None] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Item]:
    """Send the plan and return records, server windows and facts.

    Raises:
        TwoStrokeError: the endpoint cannot be reached, or no request gave a timed reply.
    """
    client = Client(plan.endpoint, time.monotonic() + plan.limits.seconds)
    items: list[Item] = []
    if plan.endpoint.is_local and (busy := cpu_busy_share()) is not None:
        items.append(Fact(name="cpu_busy_share", value=round(busy, 3), engine=ENGINE))
    probe = _Probe(plan, client, clock, say)
    try:
        probe.look()
        before = read_metrics(client.get("/metrics"))
    except ProbeFailed as error:
        raise TwoStrokeError(f"the endpoint did not answer: {error}") from error
    records = probe.records(probe.send())
    if not records:
        raise TwoStrokeError(
            "no request gave a timed reply",
            value=probe.last_failure,
            remedy="Check the model name (--served-model) and the server's own log.",
        )
    try:
        after = read_metrics(client.get("/metrics"))
        if (window := window_between(before, after)) is not None:
            items.append(window)
    except ProbeFailed as error:
        say(f"  no metrics at the end: {error}")
    return [*items, *records]


class _Probe:
    """One run of a plan against one server."""

    def __init__(
        self,
        plan: ProbePlan,
        client: Client,
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._client, self._clock, self._say = plan, client, clock, say
        self._model = plan.model
        self._is_ollama = False
        self._asks_for_usage = True
        self._tokens = 0
        self._requests = 0
        self.last_failure = "nothing was sent"

    def look(self) -> None:
        """Find out which kind of server answers and which model it serves."""
        self._requests += 2  # with the metrics at the start
        name = first_model(self._client.get("/api/tags"))
        self._is_ollama = name is not None
        if name is None:
            self._requests += 1
            name = first_model(self._client.get("/v1/models"))
        self._model = self._model or name

    def send(self) -> dict[str, tuple[Step, TimedReply]]:
        """Send every step that the limits still allow; a failed one is said and left out."""
        replies: dict[str, tuple[Step, TimedReply]] = {}
        for _, steps in groupby(self._plan.steps, key=_sent_with):
            group = list(steps)
            if self._is_allowed(group):
                replies |= self._together(group)
            else:
                self._say(f"  {group[0].name}: left out, the limits are reached")
        return replies

    def _is_allowed(self, group: list[Step]) -> bool:
        tokens = self._tokens + sum(step.most_tokens for step in group)
        requests = self._requests + len(group) + 1  # the metrics at the end
        limits = self._plan.limits
        return tokens <= limits.tokens and requests <= limits.requests

    def _count(self, step: Step) -> None:
        self._tokens += step.most_tokens
        self._requests += 1

    def _together(self, group: list[Step]) -> dict[str, tuple[Step, TimedReply]]:
        """Send steps at once, each on its own connection."""
        done: dict[str, tuple[Step, TimedReply]] = {}
        failed: dict[str, str] = {}

        def ask(step: Step) -> None:
            try:
                done[step.name] = (step, self._ask(step))
            except ProbeFailed as error:
                failed[step.name] = str(error)

        threads = [threading.Thread(target=ask, args=(step,), daemon=True) for step in group]
        for step in group:
            self._count(step)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, why in failed.items():
            self._fail(name, why)
        return done

    def _fail(self, name: str, why: str) -> None:
        self.last_failure = f"{name}: {why}"
        self._say(f"  {self.last_failure}")

    def _ask(self, step: Step) -> TimedReply:
        prompt = self._plan.prompt_of(step)
        if self._is_ollama:
            options = {"num_predict": step.output, "temperature": 0}
            body = {"model": self._model, "prompt": prompt, "stream": True, "options": options}
            return self._client.stream("/api/generate", body, self._clock)
        chat = {
            "model": self._model or "default",
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "max_tokens": step.output,
            "temperature": 0,
        }
        return self._ask_with_usage(step, chat) if self._asks_for_usage else self._chat(chat)

    def _ask_with_usage(self, step: Step, chat: dict[str, Any]) -> TimedReply:
        """Ask for token counts too; an old server that refuses this is asked again without."""
        try:
            return self._chat({**chat, "stream_options": {"include_usage": True}})
        except ProbeFailed as error:
            is_refused = "status 4" in str(error) and "stream_options" in str(error)
            if not is_refused or not self._is_allowed([step]):
                raise
        self._asks_for_usage = False
        self._count(step)
        return self._chat(chat)

    def _chat(self, body: dict[str, Any]) -> TimedReply:
        return self._client.stream(_CHAT, body, self._clock)

    def records(self, replies: dict[str, tuple[Step, TimedReply]]) -> list[RequestRecord]:
        """Return the records of the replies that held text; those outside the wait are flagged."""
        timed: dict[str, RequestRecord] = {}
        for name, (step, reply) in replies.items():
            record = record_of(step, reply, self._model)
            if record is None:
                self._fail(name, "the reply held no text")
            else:
                timed[name] = record
        out = []
        for name, record in settle(timed).items():
            self._say("  " + _summary(name, record))
            is_judged = name in _JUDGED or record.phases.queue_s
            flags = record.meter.flags if is_judged else (*record.meter.flags, CONTROL)
            out.append(replace(record, meter=replace(record.meter, flags=flags)))
        return out


def _sent_with(step: Step) -> tuple[str, ...]:
    """Return the names of the steps that go out at once."""
    return PAIR if step.name in PAIR else (step.name,)


def _summary(name: str, record: RequestRecord) -> str:
    count = record.prompt.total
    tokens = f"{count:,} tokens in" if count is not None else "prompt"
    cached = f" ({record.prompt.cached:,} cached)" if record.prompt.cached else ""
    rate = f", then {record.decode_tok_s:.4g} tok/s" if record.decode_tok_s else ""
    return f"{name:<8} {tokens}{cached}, first token after {record.ttft_any_s or 0.0:.3f} s{rate}"
