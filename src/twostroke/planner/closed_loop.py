"""Clients in a closed loop on the simulated runner, with the scheduler and engine that serve.

Each client sends its next request when its last one has ended; the first round only fills the
machine and is not counted. Step times are predicted, everything else is the code that serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from twostroke.cache.manager import KVCacheManager
from twostroke.config import EngineConfig
from twostroke.dataclass import dataclass
from twostroke.engine.engine import Engine
from twostroke.planner.simulated import FakeClock, SimulatedRunner
from twostroke.predict.predictor import Predictor
from twostroke.request import Request, SamplingParams
from twostroke.sampling import mix
from twostroke.scheduler.scheduler import Scheduler
from twostroke.step import StepPlan

ROUNDS = 3
_QUANTILE = 0.95
_VOCABULARY = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """One request of every client, and the targets. Units: tokens; seconds.

    cached_tokens: length of a prefix that all prompts share. outputs: lengths that answers were
    seen to have; each answer takes one of them, the same in every run. Without them every answer
    is output_tokens long, and equal answers keep the clients out of each other's way.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    outputs: tuple[int, ...] = ()
    target_ttft_s: float | None = None
    target_tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """Latencies of a simulation's clients: 95th percentiles. Units: seconds; tokens per second."""

    concurrency: int
    ttft_s: float
    tpot_s: float | None
    output_tok_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(slots=True)
class _Client:
    """One client's running request. Sole writer: `_ClosedLoop`."""

    round: int = 0
    token_times: list[float] = field(default_factory=list)
    sent_s: float = 0.0


class _ClosedLoop:
    """Clients in a closed loop around one engine."""

    def __init__(
        self,
        predictor: Predictor,
        load: ClientLoad,
        concurrency: int,
        *,
        num_blocks: int,
        chunk: int,
    ) -> None:
        self._load = load
        self._clock = FakeClock()
        self._predictor = predictor
        length = load.prompt_tokens + max(load.output_tokens, *load.outputs, 1)
        config = EngineConfig(
            max_model_len=length,
            max_num_seqs=concurrency,
            prefill_chunk=chunk,
            target_tpot_s=min(max(load.target_tpot_s or 0.1, 0.001), 60.0),
        )
        scheduler = Scheduler(
            config,
            KVCacheManager(num_blocks),
            predictor,
            clock=self._clock,
            max_wait_s=float("inf"),
        )
        runner = SimulatedRunner(num_blocks, self._cost_s, self._clock, vocab_size=_VOCABULARY)
        self._engine = Engine(scheduler, runner, clock=self._clock)
        self._clients = {str(i): _Client() for i in range(concurrency)}
        self.ttft: list[float] = []
        self.tpot: list[float] = []
        self._num_output = 0
        self._counted_s: float | None = None

    def _cost_s(self, plan: StepPlan) -> float:
        seconds = self._predictor.step_s(plan)
        assert seconds is not None, "capacity is asked only where the device's rates are known"
        return seconds

    def run(self) -> Served:
        """Let every client send its rounds and return their latencies."""
        for name in self._clients:
            self._send(name)
        while self._engine.has_work:
            for output in self._engine.step():
                client = self._clients[output.request_id]
                client.token_times.extend([self._clock.now_s] * len(output.token_ids))
                if output.finish_reason is not None:
                    self._finished(output.request_id, client)
        start = self._counted_s if self._counted_s is not None else 0.0
        return Served(
            len(self._clients),
            quantile(self.ttft, _QUANTILE),
            quantile(self.tpot, _QUANTILE) if self.tpot else None,
            self._num_output / max(self._clock.now_s - start, 1e-12),
        )

    def _finished(self, name: str, client: _Client) -> None:
        times = client.token_times
        if client.round:
            self.ttft.append(times[0] - client.sent_s)
            if len(times) > 1:
                self.tpot.append((times[-1] - times[0]) / (len(times) - 1))
            self._num_output += len(times)
        elif self._counted_s is None:
            self._counted_s = self._clock.now_s
        client.round += 1
        if client.round < ROUNDS:
            self._send(name)

    def _send(self, name: str) -> None:
        client, load = self._clients[name], self._load
        client.sent_s = self._clock.now_s
        client.token_times = []
        request = Request(
            id=name,
            prompt_token_ids=_prompt(load, int(name), client.round),
            params=SamplingParams(
                temperature=0.0,
                max_tokens=_output(load, int(name), client.round),
                ignore_eos=True,
            ),
            seed=0,
            end_token_ids=frozenset(),
            arrival_s=client.sent_s,
        )
        self._engine.add(request)


def _output(load: ClientLoad, client: int, round_: int) -> int:
    """Return the tokens of one answer."""
    if not load.outputs:
        return load.output_tokens
    return load.outputs[mix(mix(client + 1) ^ (round_ + 1)) % len(load.outputs)]


def _prompt(load: ClientLoad, client: int, round_: int) -> tuple[int, ...]:
    """Return a prompt that shares its cached prefix with all others and nothing more."""
    rest = load.prompt_tokens - load.cached_tokens
    start = load.cached_tokens + (client * ROUNDS + round_) * rest
    return tuple(range(load.cached_tokens)) + tuple(range(start, start + rest))


def simulate(
    predictor: Predictor, load: ClientLoad, concurrency: int, *, num_blocks: int, chunk: int = 512
) -> Served:
    """Return the latencies of `concurrency` clients in a closed loop.

    Raises:
        ContextTooLong, OutOfBlocks: one request does not fit the blocks.
    """
    return _ClosedLoop(predictor, load, concurrency, num_blocks=num_blocks, chunk=chunk).run()


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * int(share * 100) // 100)
    return ordered[max(min(rank, len(ordered)) - 1, 0)]
