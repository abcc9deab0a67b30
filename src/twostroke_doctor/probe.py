"""Ask a running endpoint and tell its phases apart from outside, by control experiments.

The wait that is judged is a follow-up turn's: a prompt that was just sent, again, then a long
answer, with the load of a first contact and the queue of a second caller where there are any.
Unseen prompts of the same length are controls: they say what a hit would save, and are no part of
the wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twostroke.errors import TwoStrokeError
from twostroke.record import RequestRecord
from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.probe_client import MAX_METRICS_BYTES, Client, ProbeFailed, Reply, first_model
from twostroke_doctor.probe_machine import cpu_busy_share
from twostroke_doctor.probe_metrics import read_metrics, window_between
from twostroke_doctor.probe_plan import Limits, Plan, Step, make_plan
from twostroke_doctor.probe_record import CONTROL, record_of, settle

__all__ = ["Limits", "Plan", "make_plan", "run_plan"]

ENGINE = "endpoint"
_JUDGED = frozenset({"first", "again", "long"})


def run_plan(
    plan: Plan,
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
    try:
        asked = _Asked(plan, client, clock, say)
        asked.look()
        before = read_metrics(client.get("/metrics", MAX_METRICS_BYTES))
    except ProbeFailed as error:
        raise TwoStrokeError(f"the endpoint did not answer: {error}") from error
    records = asked.send()
    if not records:
        raise TwoStrokeError(
            "no request gave a timed reply",
            value=asked.last_failure,
            remedy="Check the model name (--served-model) and the server's own log.",
        )
    try:
        after = read_metrics(client.get("/metrics", MAX_METRICS_BYTES))
        if (window := window_between(before, after)) is not None:
            items.append(window)
    except ProbeFailed as error:
        say(f"  no metrics at the end: {error}")
    return [*items, *records]


class _Asked:
    """One run of a plan against one server."""

    def __init__(
        self, plan: Plan, client: Client, clock: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        self._plan, self._client, self._clock, self._say = plan, client, clock, say
        self._model = plan.model
        self._ollama = False
        self._usage = True
        self._tokens = 0
        self._requests = 0
        self.last_failure = "nothing was sent"

    def look(self) -> None:
        """Find out what server this is and which model it serves."""
        tags = self._client.get("/api/tags", MAX_METRICS_BYTES)
        self._requests += 2  # with the metrics at the start
        if first_model(tags) is not None:
            self._ollama = True
            self._model = self._model or first_model(tags)
            return
        self._requests += 1
        self._model = self._model or first_model(self._client.get("/v1/models", MAX_METRICS_BYTES))

    def send(self) -> list[RequestRecord]:
        """Send every step that the limits still allow; a failed one is said and left out."""
        replies: dict[str, tuple[Step, Reply]] = {}
        for step in self._plan.steps:
            if step.name == "pair-2":
                continue
            steps = [s for s in self._plan.steps if s.name in ("pair-1", "pair-2")]
            group = steps if step.name == "pair-1" else [step]
            if not self._allowed(group):
                self._say(f"  {step.name}: left out, the limits are reached")
                continue
            for name, reply in self._together(group).items():
                replies[name] = reply
        return self._records(replies)

    def _allowed(self, group: list[Step]) -> bool:
        tokens = self._tokens + sum(step.most_tokens for step in group)
        requests = self._requests + len(group) + 1  # the metrics at the end
        limits = self._plan.limits
        return tokens <= limits.tokens and requests <= limits.requests

    def _together(self, group: list[Step]) -> dict[str, tuple[Step, Reply]]:
        """Send steps at once, each on its own connection."""
        done: dict[str, tuple[Step, Reply]] = {}
        failed: dict[str, str] = {}

        def ask(step: Step) -> None:
            try:
                done[step.name] = (step, self._ask(step))
            except ProbeFailed as error:
                failed[step.name] = str(error)

        threads = [threading.Thread(target=ask, args=(step,), daemon=True) for step in group]
        for step in group:
            self._tokens += step.most_tokens
            self._requests += 1
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, why in failed.items():
            self.last_failure = f"{name}: {why}"
            self._say(f"  {name}: {why}")
        return done

    def _ask(self, step: Step) -> Reply:
        prompt = self._plan.prompt_of(step)
        if self._ollama:
            body: dict[str, Any] = {
                "model": self._model,
                "prompt": prompt,
                "stream": True,
                "options": {"num_predict": step.output, "temperature": 0},
            }
            return self._client.stream("/api/generate", body, self._clock)
        body = {
            "model": self._model or "default",
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "max_tokens": step.output,
            "temperature": 0,
        }
        if self._usage:
            body["stream_options"] = {"include_usage": True}
        try:
            return self._client.stream("/v1/chat/completions", body, self._clock)
        except ProbeFailed as error:
            rejects = "status 4" in str(error) and "stream_options" in str(error)
            if not rejects or not self._allowed([step]):
                raise
        self._usage = False  # an old server: ask once more, without
        self._requests += 1
        self._tokens += step.most_tokens
        body.pop("stream_options")
        return self._client.stream("/v1/chat/completions", body, self._clock)

    def _records(self, replies: dict[str, tuple[Step, Reply]]) -> list[RequestRecord]:
        records = {
            name: record_of(step, reply, self._model) for name, (step, reply) in replies.items()
        }
        for name in (name for name, record in records.items() if record is None):
            self.last_failure = f"{name}: the reply held no text"
            self._say(f"  {self.last_failure}")
        timed = settle({name: r for name, r in records.items() if r is not None})
        out = []
        for name, record in timed.items():
            self._say("  " + _summary(name, record))
            judged = name in _JUDGED or record.phases.queue_s
            flags = record.meter.flags if judged else (*record.meter.flags, CONTROL)
            out.append(replace(record, meter=replace(record.meter, flags=flags)))
        return out


def _summary(name: str, record: RequestRecord) -> str:
    count = record.prompt.total
    tokens = f"{count:,} tokens in" if count is not None else "prompt"
    cached = f" ({record.prompt.cached:,} cached)" if record.prompt.cached else ""
    rate = f", then {record.decode_tok_s:.4g} tok/s" if record.decode_tok_s else ""
    return f"{name:<8} {tokens}{cached}, first token after {record.ttft_any_s or 0.0:.3f} s{rate}"
