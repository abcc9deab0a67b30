"""Prefill and decode measured apart on a runner: no text, no scheduler, seeded prompts.

Each row stands beside its ceiling and the hash of its greedy ids. Prefill never counts the
output matrix for inner rows; decode counts steps after the first token only.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.predict.cost import CostModel, Work
from twostroke.predict.hardware import MachineProfile
from twostroke.request import SamplingParams
from twostroke.step import BLOCK_SIZE, BlockTable, Phase, Runner, SampleSpec, Slice, StepPlan

PROMPT_SEED = 1234
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured test. Rates are tokens per second over the whole batch; samples one per
    repeat.
    """

    test: str
    tok_per_s: float
    samples: tuple[float, ...]
    ceiling_tok_per_s: float | None
    mfu: float | None
    mbu: float | None
    hash: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    work: Work
    ids: tuple[int, ...]


def seeded_prompt(num_tokens: int, vocab_size: int, *, stream: int = 0) -> tuple[int, ...]:
    """Return token ids that look random and are the same everywhere (a 64-bit LCG, Knuth's
    MMIX).
    """
    state = PROMPT_SEED + stream
    ids = []
    for _ in range(num_tokens):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((state >> 33) % vocab_size)
    return tuple(ids)


class LocalBench:
    """Runs tests on one runner whose blocks all belong to it."""

    def __init__(
        self,
        runner: Runner,
        *,
        vocab_size: int,
        cost: CostModel,
        profile: MachineProfile | None,
        prefill_chunk: int,
        after_warm_up: Callable[[], object] | None = None,
    ) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._cost = cost
        self._profile = profile
        self._chunk = prefill_chunk
        self._after_warm_up = after_warm_up

    def prefill(self, num_tokens: int, *, depth: int, repeat: int) -> Row:
        """Measure the prefill of num_tokens new tokens after `depth` cached ones (pp)."""
        name = f"pp{num_tokens}" + (f"@d{depth}" if depth else "")
        runs = self._repeat(lambda: self._prefill_once(num_tokens, depth), repeat)
        return self._row(name, runs, num_tokens, is_prefill=True)

    def decode(self, num_tokens: int, *, depth: int, batch: int, repeat: int) -> Row:
        """Measure num_tokens decode steps of `batch` requests after `depth` tokens each (tg)."""
        name = f"tg{num_tokens}" + (f"xb{batch}" if batch > 1 else "")
        name += f"@d{depth}" if depth else ""
        runs = self._repeat(lambda: self._decode_once(num_tokens, depth, batch), repeat)
        return self._row(name, runs, num_tokens * batch, is_prefill=False)

    def decode_without_cache(self, num_tokens: int, *, depth: int, repeat: int) -> Row:
        """Measure the same without a KV cache: each token recomputes everything before it."""
        name = f"tg{num_tokens}-nocache" + (f"@d{depth}" if depth else "")
        runs = self._repeat(lambda: self._recompute_once(num_tokens, depth), repeat)
        return self._row(name, runs, num_tokens, is_prefill=True)

    def _repeat(self, once: Callable[[], _Run], repeat: int) -> list[_Run]:
        """Run a test once untimed, so that nothing cold is measured, then `repeat` times."""
        once()
        if self._after_warm_up is not None:
            self._after_warm_up()
        return [once() for _ in range(repeat)]

    # One run each

    def _blocks(self, index: int, num_tokens: int) -> BlockTable:
        count = -(-num_tokens // BLOCK_SIZE)
        return BlockTable(range(index * count, (index + 1) * count))

    def _fill(
        self, request_id: str, ids: tuple[int, ...], start: int, blocks: BlockTable
    ) -> Iterator[tuple[StepPlan, int | None]]:
        """Run [start, len(ids)) in chunks; yield each plan and the token after the last chunk."""
        for at in range(start, len(ids), self._chunk):
            piece = ids[at : at + self._chunk]
            is_last = at + len(piece) == len(ids)
            spec = SampleSpec(_GREEDY, 0, 0, len(ids)) if is_last else None
            part = Slice(request_id, Phase.PREFILL, piece, at, blocks, spec)
            plan = StepPlan(prefill=(part,), new_blocks=blocks if at == 0 else ())
            result = self._runner.run(plan)
            yield plan, result.sampled[request_id].token_id if is_last else None

    def _prefill_once(self, num_tokens: int, depth: int) -> _Run:
        ids = seeded_prompt(depth + num_tokens, self._vocab_size)
        blocks = self._blocks(0, len(ids))
        for _ in self._fill("bench", ids[:depth], 0, blocks):
            pass
        work, token = Work(), 0
        start = time.perf_counter()
        done = list(self._fill("bench", ids, depth, blocks))
        seconds = time.perf_counter() - start
        for plan, sampled in done:
            work += self._cost.step_work(plan).total
            token = sampled if sampled is not None else token
        return _Run(seconds, work, (token,))

    def _decode_once(self, num_tokens: int, depth: int, batch: int) -> _Run:
        length = max(depth, 1)
        tokens, tables = [], []
        for i in range(batch):
            ids = seeded_prompt(length, self._vocab_size, stream=i)
            tables.append(self._blocks(i, length + num_tokens))
            *_, (_, token) = self._fill(f"bench-{i}", ids, 0, tables[-1])
            assert token is not None
            tokens.append([token])
        plans = []
        start = time.perf_counter()
        for step in range(num_tokens):
            at = length + step
            spec = SampleSpec(_GREEDY, 0, 0, at + 1)
            slices = tuple(
                Slice(f"bench-{i}", Phase.DECODE, (tokens[i][-1],), at, tables[i], spec)
                for i in range(batch)
            )
            plans.append(StepPlan(decode=slices))
            sampled = self._runner.run(plans[-1]).sampled
            for i in range(batch):
                tokens[i].append(sampled[f"bench-{i}"].token_id)
        seconds = time.perf_counter() - start
        work = Work()
        for plan in plans:
            work += self._cost.step_work(plan).total
        return _Run(seconds, work, tuple(t for one in tokens for t in one))

    def _recompute_once(self, num_tokens: int, depth: int) -> _Run:
        ids = seeded_prompt(max(depth, 1), self._vocab_size)
        start, work = time.perf_counter(), Work()
        for _ in range(num_tokens):
            blocks = self._blocks(0, len(ids))
            done = list(self._fill("bench", ids, 0, blocks))
            for plan, _ in done:
                work += self._cost.step_work(plan).total
            token = done[-1][1]
            assert token is not None
            ids = (*ids, token)
        return _Run(time.perf_counter() - start, work, ids[-num_tokens:])

    # Results

    def _row(self, name: str, runs: list[_Run], num_tokens: int, *, is_prefill: bool) -> Row:
        samples = tuple(num_tokens / run.seconds for run in runs)
        seconds = statistics.median(run.seconds for run in runs)
        work, profile = runs[0].work, self._profile
        hashes = {hashlib.sha256(repr(run.ids).encode()).hexdigest()[:16] for run in runs}
        assert len(hashes) == 1, "equal prompts gave different tokens: the same-bits law is broken"
        ceiling = mfu = mbu = None
        if profile is not None:
            working_set = self._cost.weight_bytes
            arithmetic = profile.arithmetic_s(work)
            traffic = profile.memory_s(work, working_set)
            mfu, mbu = arithmetic / seconds, traffic / seconds
            ceiling = num_tokens / (arithmetic if is_prefill else max(arithmetic, traffic))
        return Row(
            test=name,
            tok_per_s=num_tokens / seconds,
            samples=samples,
            ceiling_tok_per_s=ceiling,
            mfu=mfu,
            mbu=mbu,
            hash=hashes.pop(),
        )
