"""One step as arrays and its results as an array: the interface between the runner and a backend.

Legend: T tokens, S requests, R wanted rows. Knows no plan and no kernel.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from twostroke.dataclass import dataclass
from twostroke.step import SampleSpec

MAX_TOP = 32  # alternatives a result has room for
NO_TARGET = -1  # of StepArrays.targets: no log-probability is wanted

SAMPLE_RESULT = np.dtype(
    [
        ("token_id", "<i4"),
        ("logprob", "<f4"),  # NaN when not asked
        ("target_logprob", "<f4"),  # NaN when not asked
        ("top_ids", "<i4", (MAX_TOP,)),
        ("top_logprobs", "<f4", (MAX_TOP,)),
        ("num_top", "<i4"),
    ]
)

Int32s = npt.NDArray[np.int32]
Results = npt.NDArray[np.void]  # SAMPLE_RESULT


@dataclass(frozen=True, slots=True, eq=False)
class StepArrays:
    """The inputs of a step.

    specs and targets go with logit_rows: how to choose a token there (None: no token is chosen),
    and the id whose log-probability is wanted, or NO_TARGET.
    """

    token_ids: Int32s  # [T]
    positions: Int32s  # [T]
    slot_mapping: npt.NDArray[np.int64]  # [T]
    cu_seqlens_q: Int32s  # [S + 1]
    context_lens: Int32s  # [S]
    block_tables: Int32s  # [S, max blocks]
    logit_rows: Int32s  # [R]
    specs: tuple[SampleSpec | None, ...]  # R
    targets: tuple[int, ...]  # R
    new_blocks: Int32s
    copies: Int32s  # [n, 3]: source, target, tokens


class CachedModel(Protocol):
    """A model with its cache, ready to run steps."""

    num_blocks: int
    max_tokens: int  # of one step

    def step(self, arrays: StepArrays) -> Results:
        """Prepare blocks, run the forward pass, sample the wanted rows.

        Shapes: returns [R] SAMPLE_RESULT
        """
        ...
