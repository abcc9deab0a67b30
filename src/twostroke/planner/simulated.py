"""A runner without a model: predicted step times on a fake clock and deterministic tokens.

The real scheduler and engine run on it, in tests and in the capacity planner. With `is_stateful`
every slot of a paged store holds a digest of its token and of earlier slots, read through the
block table as attention would read it: a wrong block, a missed copy or a stale slot changes the
tokens that come out.
"""

from __future__ import annotations

from collections.abc import Callable

from twostroke.dataclass import dataclass
from twostroke.sampling import mix
from twostroke.step import BLOCK_SIZE, Sampled, Slice, StepPlan, StepResult

FIRST_TOKEN_ID = 100  # ids below are left to tests that need end tokens


@dataclass(slots=True)
class FakeClock:
    """A monotonic clock that moves only when told. Units: seconds."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move on."""
        self.now_s += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """Step time as a sum: constant, prefill tokens, attention pairs, streams, their context.

    Units: seconds.
    """

    step_s: float = 0.001
    prefill_token_s: float = 0.0005
    pair_s: float = 0.0
    decode_s: float = 0.0
    context_token_s: float = 0.0

    def __call__(self, plan: StepPlan) -> float:
        seconds = self.step_s + self.decode_s * len(plan.decode)
        for s in plan.prefill:
            n = len(s.token_ids)
            seconds += self.prefill_token_s * n + self.pair_s * n * (s.start + 0.5 * n)
        return seconds + self.context_token_s * sum(s.start for s in plan.decode)


class SimulatedRunner:
    """Implements `step.Runner`. Sole writer of its clock's time during a run."""

    def __init__(
        self,
        num_blocks: int,
        cost_s: Callable[[StepPlan], float],
        clock: FakeClock,
        *,
        vocab_size: int = 32_000,
        is_stateful: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self._cost_s = cost_s
        self._clock = clock
        self._num_ids = vocab_size - FIRST_TOKEN_ID
        self._slots = [0] * (num_blocks * BLOCK_SIZE) if is_stateful else None

    def run(self, plan: StepPlan) -> StepResult:
        """Let the predicted time pass and choose a token for every slice that samples."""
        start_s = self._clock.now_s
        if self._slots is not None:
            self._prepare(self._slots, plan)
        sampled: dict[str, Sampled] = {}
        for s in plan.slices:
            state = self._write(self._slots, s) if self._slots is not None else s.start
            if s.sample is not None:
                draw = mix(state ^ mix(s.sample.seed ^ mix(s.sample.position)))
                sampled[s.request_id] = Sampled(FIRST_TOKEN_ID + draw % self._num_ids)
        self._clock.advance(self._cost_s(plan))
        return StepResult(sampled, {}, start_s, self._clock.now_s)

    @staticmethod
    def _prepare(slots: list[int], plan: StepPlan) -> None:
        for block in plan.new_blocks:
            slots[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] = [0] * BLOCK_SIZE
        for copy in plan.copies:
            source, target = copy.source * BLOCK_SIZE, copy.target * BLOCK_SIZE
            slots[target : target + copy.num_tokens] = slots[source : source + copy.num_tokens]

    @staticmethod
    def _write(slots: list[int], s: Slice) -> int:
        """Store a digest per token of the token before and of one earlier slot; return the last."""
        table = s.block_table

        def place(position: int) -> int:
            return table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE

        state = slots[place(s.start - 1)] if s.start else 0
        for position, token_id in enumerate(s.token_ids, s.start):
            earlier = slots[place(state % position)] if position else 0
            state = mix(state ^ mix(earlier ^ (token_id + 1)))
            slots[place(position)] = state
        return state
