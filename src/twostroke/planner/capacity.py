"""How many streams meet the targets: the real scheduler and engine on the simulated runner.

Each client sends its next request when the last one has ended (a closed loop); the first round only
fills the machine and is not counted. Step times are predicted, everything else is the code that
serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from twostroke.cache.manager import KVCacheManager
from twostroke.config import EngineConfig
from twostroke.dataclass import dataclass
from twostroke.engine.engine import Engine
from twostroke.errors import ConfigError
from twostroke.planner.simulated import FakeClock, SimulatedRunner
from twostroke.predict.predictor import Predictor
from twostroke.request import Request, SamplingParams
from twostroke.sampling import mix
from twostroke.scheduler.scheduler import Scheduler
from twostroke.step import BLOCK_SIZE, StepPlan

_ROUNDS = 3
_MAX_TOKENS_SIMULATED = 40_000  # of output, in one simulation: some seconds of our time
_QUANTILE = 0.95
_VOCABULARY = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What every client asks. cached_tokens: a head that all prompts share. Units: seconds.

    outputs: lengths that answers were seen to have, drawn from evenly, the same in every run; none:
    all are output_tokens long, and equal answers keep the clients out of each other's way.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    outputs: tuple[int, ...] = ()
    target_ttft_s: float | None = None
    target_tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What clients saw in a simulation: 95th percentiles. Units: seconds; tokens per second."""

    concurrency: int
    ttft_s: float
    tpot_s: float | None
    output_tok_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most streams that keep the targets; limit says what ends it, None: unknown."""

    concurrency: int | None
    limit: str
    served: Served | None = None
    tried: tuple[Served, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "concurrency": self.concurrency,
            "limit": self.limit,
            "served": self.served.to_dict() if self.served else None,
            "tried": [served.to_dict() for served in self.tried],
        }


@dataclass(slots=True)
class _Client:
    """One client's running request. Sole writer: `_Loop`."""

    round: int = 0
    token_times: list[float] = field(default_factory=list)
    sent_s: float = 0.0


class _Loop:
    """Clients in a closed loop around one engine."""

    def __init__(
        self,
        predictor: Predictor,
        load: Load,
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
        """Let every client send its rounds and return what they saw."""
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
        if client.round < _ROUNDS:
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


def _output(load: Load, client: int, round_: int) -> int:
    """Return the tokens of one answer."""
    if not load.outputs:
        return load.output_tokens
    return load.outputs[mix(mix(client + 1) ^ (round_ + 1)) % len(load.outputs)]


def _prompt(load: Load, client: int, round_: int) -> tuple[int, ...]:
    """Return a prompt that shares its cached head with all others and nothing more."""
    rest = load.prompt_tokens - load.cached_tokens
    start = load.cached_tokens + (client * _ROUNDS + round_) * rest
    return tuple(range(load.cached_tokens)) + tuple(range(start, start + rest))


def simulate(
    predictor: Predictor, load: Load, concurrency: int, *, num_blocks: int, chunk: int = 512
) -> Served:
    """Return what `concurrency` clients in a closed loop see.

    Raises:
        ContextTooLong, OutOfBlocks: one request does not fit the blocks.
    """
    return _Loop(predictor, load, concurrency, num_blocks=num_blocks, chunk=chunk).run()


def find_capacity(
    predictor: Predictor,
    load: Load,
    *,
    most: int,
    num_blocks: int,
    chunk: int = 512,
) -> Capacity:
    """Return the most clients, at most `most`, whose 95th percentiles keep the targets.

    Raises:
        ConfigError: no target is given, or a request without output.
    """
    if load.target_ttft_s is None and load.target_tpot_s is None:
        raise ConfigError(
            "a capacity needs a target", remedy="Give --target-ttft or --target-tpot."
        )
    if load.output_tokens < 1:
        raise ConfigError("a capacity needs output tokens", value=load.output_tokens, limit=">= 1")
    if predictor.missing:
        return Capacity(None, f"unknown: {', '.join(predictor.missing)}")
    blocks_of_one = -(-(load.prompt_tokens + load.output_tokens) // BLOCK_SIZE)
    if most < 1 or num_blocks < blocks_of_one:
        return Capacity(0, "memory")
    by_output = _MAX_TOKENS_SIMULATED // (_ROUNDS * load.output_tokens)
    by_ids = (1 << 31) // (_ROUNDS * load.prompt_tokens) - 1  # every prompt has ids of its own
    largest = max(min(most, by_output, by_ids, 1024), 1)
    tried: dict[int, Served] = {}

    def keeps(n: int) -> bool:
        if n not in tried:
            tried[n] = simulate(predictor, load, n, num_blocks=num_blocks, chunk=chunk)
        return not _broken(load, tried[n])

    best = _largest_that(keeps, largest)
    in_order = tuple(tried[n] for n in sorted(tried))
    if best == 0:
        return Capacity(0, _broken(load, tried[1]), None, in_order)
    if best < largest:
        return Capacity(best, _broken(load, tried[best + 1]), tried[best], in_order)
    limit = "memory" if largest == most else f"at least: no more than {largest} were simulated"
    return Capacity(best, limit, tried[best], in_order)


def _broken(load: Load, served: Served) -> str:
    """Return which target is missed, or nothing."""
    if load.target_ttft_s is not None and served.ttft_s > load.target_ttft_s:
        return "target-ttft"
    tpot = served.tpot_s
    if load.target_tpot_s is not None and tpot is not None and tpot > load.target_tpot_s:
        return "target-tpot"
    return ""


def _largest_that(keeps: Any, largest: int) -> int:
    """Return the largest n in [0, largest] that keeps, by doubling and halving; 0: none does."""
    good, n = 0, 1
    while n <= largest and keeps(n):
        good, n = n, (largest if n < largest < 2 * n else 2 * n)
    bad = min(n, largest + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if keeps(middle):
            good = middle
        else:
            bad = middle
    return good


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * int(share * 100) // 100)
    return ordered[max(min(rank, len(ordered)) - 1, 0)]
