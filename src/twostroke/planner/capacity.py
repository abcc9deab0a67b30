"""How many streams meet the targets, found by simulating them."""

from __future__ import annotations

from typing import Any

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.planner.closed_loop import ROUNDS, ClientLoad, Served, simulate
from twostroke.planner.search import largest_that
from twostroke.predict.predictor import Predictor
from twostroke.step import BLOCK_SIZE

_MAX_TOKENS_SIMULATED = 40_000  # of output, in one simulation: some seconds of our time


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most streams that keep the targets, and the limit that ends it. None: unknown.

    served: latencies at that many streams; tried: of every number that was simulated.
    """

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


def find_capacity(
    predictor: Predictor,
    load: ClientLoad,
    *,
    most: int,
    num_blocks: int,
    chunk: int = 512,
) -> Capacity:
    """Return the most clients, at most `most`, whose 95th percentiles keep the targets.

    Raises:
        ConfigError: no target is given, or a request without output.
    """
    _check(load)
    if predictor.missing:
        return Capacity(None, f"unknown: {', '.join(predictor.missing)}")
    blocks_of_one = -(-(load.prompt_tokens + load.output_tokens) // BLOCK_SIZE)
    if most < 1 or num_blocks < blocks_of_one:
        return Capacity(0, "memory")
    largest = _most_simulated(load, most)
    tried: dict[int, Served] = {}

    def keeps(n: int) -> bool:
        tried[n] = simulate(predictor, load, n, num_blocks=num_blocks, chunk=chunk)
        return _missed_target(load, tried[n]) is None

    best = largest_that(keeps, largest)
    in_order = tuple(tried[n] for n in sorted(tried))
    if best < largest:
        limit = _missed_target(load, tried[best + 1])
        assert limit is not None, "one client more misses a target"
    elif largest == most:
        limit = "memory"
    else:
        limit = f"at least: no more than {largest} were simulated"
    return Capacity(best, limit, tried.get(best), in_order)


def _check(load: ClientLoad) -> None:
    if load.target_ttft_s is None and load.target_tpot_s is None:
        raise ConfigError(
            "a capacity needs a target", remedy="Give --target-ttft or --target-tpot."
        )
    if load.output_tokens < 1:
        raise ConfigError("a capacity needs output tokens", value=load.output_tokens, limit=">= 1")


def _most_simulated(load: ClientLoad, most: int) -> int:
    """Return how many clients are simulated at most, at least one."""
    by_output = _MAX_TOKENS_SIMULATED // (ROUNDS * load.output_tokens)
    by_ids = (1 << 31) // (ROUNDS * load.prompt_tokens) - 1  # every prompt has ids of its own
    return max(min(most, by_output, by_ids, 1024), 1)


def _missed_target(load: ClientLoad, served: Served) -> str | None:
    """Return the name of the target that the clients miss."""
    if load.target_ttft_s is not None and served.ttft_s > load.target_ttft_s:
        return "target-ttft"
    tpot = served.tpot_s
    if load.target_tpot_s is not None and tpot is not None and tpot > load.target_tpot_s:
        return "target-tpot"
    return None
