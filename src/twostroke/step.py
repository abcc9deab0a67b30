"""One turn of the engine loop as data: the plan of a step, and the result of running it.

Phase is derived from counts: a slice is DECODE iff its request has output and exactly its last
token is not computed yet; everything else, recompute after preemption included, is PREFILL.
"""

from __future__ import annotations

import enum
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from twostroke.dataclass import dataclass
from twostroke.request import SamplingParams, TokenLogprob

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BLOCK_SIZE = 16  # tokens a KV block holds; a constant of the kernels' layout


class Phase(enum.Enum):
    """Which bottleneck a slice meets: arithmetic (prefill) or memory bandwidth (decode)."""

    PREFILL = "prefill"
    DECODE = "decode"


class BlockTable(tuple[int, ...]):
    """A snapshot of a request's block ids, in the order of its tokens."""

    @cached_property
    def array(self) -> npt.NDArray[np.int32]:
        """The same ids as a read-only array: made at the first use, kept with the snapshot."""
        import numpy as np  # the doctor reads records without it

        ids = np.array(self, np.int32)
        ids.flags.writeable = False
        return ids


NO_BLOCKS = BlockTable()


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """How to choose the token after a slice.

    position is the index of the token to be chosen; with (seed, choice) it keys the generator.
    prompt_ids and output_ids are filled only where penalties read them.
    """

    params: SamplingParams
    seed: int
    choice: int
    position: int
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    mask: bytes | None = None  # one bit a token, see request.TokenMask; None: all are allowed


@dataclass(frozen=True, slots=True)
class Slice:
    """The tokens of one request computed in one step: [start, start + len(token_ids))."""

    request_id: str
    phase: Phase
    token_ids: tuple[int, ...]
    start: int
    block_table: BlockTable
    sample: SampleSpec | None = None  # None: a prefill chunk that is not the last
    score: bool = False  # also return the log-probability of each next token inside the slice

    @property
    def end(self) -> int:
        """Tokens of the request in the cache after this slice: its context length."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the first `num_tokens` slots of a block into another before the step runs."""

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The slices of one step by phase, and how long the scheduler expects the step to take.

    new_blocks are zeroed before use: 0 times a stale NaN would leak another request's values.
    predicted_s is None while the predictor knows no speed.
    """

    prefill: tuple[Slice, ...] = ()
    decode: tuple[Slice, ...] = ()
    new_blocks: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    predicted_s: float | None = None

    @property
    def slices(self) -> tuple[Slice, ...]:
        """All slices, prefill first."""
        return self.prefill + self.decode

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(s.token_ids) for s in self.slices)

    @property
    def is_mixed(self) -> bool:
        """Whether the step holds both phases."""
        return bool(self.prefill) and bool(self.decode)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token chosen after a slice."""

    token_id: int
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The tokens of a step, one entry per slice that sampled, and the time of its forward pass."""

    sampled: dict[str, Sampled] = field(default_factory=dict)
    scores: dict[str, tuple[float, ...]] = field(default_factory=dict)
    start_s: float = 0.0
    end_s: float = 0.0


class Runner(Protocol):
    """Runs a plan on a model. Block ids are the scheduler's, their bytes the runner's."""

    num_blocks: int

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every slice of the plan and sample where asked."""
        ...


class StepPredictor(Protocol):
    """Predicts the time of a step and learns from measured steps."""

    def step_s(self, plan: StepPlan) -> float | None:
        """Return the predicted seconds of the plan, None while nothing is known."""
        ...

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Take note of a measured step."""
        ...
