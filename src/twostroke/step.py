"""One turn of the engine loop as data: what to compute, and what came of it.

Phase is derived from counts: a slice is DECODE iff its request has output and exactly its last
token is not computed yet; everything else, recompute after preemption included, is PREFILL.
"""

from __future__ import annotations

import enum
from dataclasses import field
from typing import Protocol

from twostroke.dataclass import dataclass
from twostroke.request import SamplingParams, TokenLogprob

BLOCK_SIZE = 16  # tokens a KV block holds; a constant of the kernels' layout


class Phase(enum.Enum):
    """Which bottleneck a slice meets: arithmetic (prefill) or memory bandwidth (decode)."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """How to choose the token after this slice. `history` holds the ids that penalties look at.

    position is the index of the token to be chosen; with (seed, choice) it keys the generator.
    """

    params: SamplingParams
    seed: int
    choice: int
    position: int
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    mask: bytes | None = None  # bits of the tokens allowed, see request.TokenMask; None: all


@dataclass(frozen=True, slots=True)
class Slice:
    """The tokens of one request computed in one step: [start, start + len(token_ids))."""

    request_id: str
    phase: Phase
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
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
    """What one step computes, the two phases apart."""

    prefill: tuple[Slice, ...] = ()
    decode: tuple[Slice, ...] = ()
    new_blocks: tuple[int, ...] = ()  # zeroed before use: 0 * stale NaN would leak another request
    copies: tuple[BlockCopy, ...] = ()

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
    """What a step gave: one entry per slice that sampled, and how long the forward pass took."""

    sampled: dict[str, Sampled] = field(default_factory=dict)
    scores: dict[str, tuple[float, ...]] = field(default_factory=dict)
    start_s: float = 0.0
    end_s: float = 0.0


class Runner(Protocol):
    """Runs a plan on a model. Blocks ids are the caller's, bytes are the runner's."""

    num_blocks: int

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every slice of the plan and sample where asked."""
        ...

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request that has ended."""
        ...


class Predictor(Protocol):
    """Says what a step will cost; learns from what it did cost."""

    def step_s(self, plan: StepPlan) -> float | None:
        """Return the predicted seconds of the plan, None while nothing is known."""
        ...

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Take note of a measured step."""
        ...
