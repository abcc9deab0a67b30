"""A StepPlan as arrays: what each token is, where it stands, and which rows are wanted.

Knows no backend and keeps nothing between steps.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twostroke.backend.arrays import Int32s, StepArrays
from twostroke.step import BLOCK_SIZE, BlockTable, SampleSpec, Slice, StepPlan

_NO_NEW_BLOCKS = np.zeros(0, np.int32)
_NO_COPIES = np.zeros((0, 3), np.int32)
_NO_TABLES = np.zeros((0, 0), np.int32)


class WantedRow(NamedTuple):
    """The purpose of one wanted row: a choice, the score of the token after it, or both.

    target is the token whose log-probability is wanted, -1 for none.
    """

    request_id: str
    spec: SampleSpec | None
    target: int


def step_arrays(plan: StepPlan) -> tuple[StepArrays, list[WantedRow]]:
    """Return the arrays of a plan, prefill first, and the purpose of each wanted row.

    Shapes: T tokens, S slices, R wanted rows, as in StepArrays
    """
    slices = plan.slices
    counts = [len(s.token_ids) for s in slices]
    cu = np.zeros(len(slices) + 1, np.int32)
    np.cumsum(counts, out=cu[1:])
    starts = cu.tolist()
    total = starts[-1]
    token_ids = np.fromiter(chain.from_iterable(s.token_ids for s in slices), np.int32, total)
    positions = np.empty(total, np.int32)
    slots = np.empty(total, np.int64)
    for s, begin, count in zip(slices, starts, counts, strict=False):
        _place(s, positions[begin : begin + count], slots[begin : begin + count])
    rows, wanted = _wanted_rows(slices, starts)
    arrays = StepArrays(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slots,
        cu_seqlens_q=cu,
        context_lens=np.array([s.end for s in slices], np.int32),
        block_tables=_stack([s.block_table for s in slices]),
        logit_rows=np.array(rows, np.int32),
        specs=tuple(row.spec for row in wanted),
        targets=tuple(row.target for row in wanted),
        new_blocks=np.array(plan.new_blocks, np.int32) if plan.new_blocks else _NO_NEW_BLOCKS,
        copies=np.array([(c.source, c.target, c.num_tokens) for c in plan.copies], np.int32)
        if plan.copies
        else _NO_COPIES,
    )
    return arrays, wanted


def _place(s: Slice, positions: Int32s, slots: npt.NDArray[np.int64]) -> None:
    if len(s.token_ids) == 1:
        positions[0] = s.start
        slots[0] = s.block_table[s.start // BLOCK_SIZE] * BLOCK_SIZE + s.start % BLOCK_SIZE
        return
    positions[:] = np.arange(s.start, s.end, dtype=np.int32)
    blocks = s.block_table.array[positions // BLOCK_SIZE].astype(np.int64)
    slots[:] = blocks * BLOCK_SIZE + positions % BLOCK_SIZE


def _stack(tables: list[BlockTable]) -> Int32s:
    """Return [S, widest table], -1 past the end of each."""
    if not tables:
        return _NO_TABLES
    if len(tables) == 1:
        return tables[0].array.reshape(1, -1)
    stacked = np.full((len(tables), max(map(len, tables))), -1, np.int32)
    for i, table in enumerate(tables):
        stacked[i, : len(table)] = table.array
    return stacked


def _wanted_rows(slices: tuple[Slice, ...], starts: list[int]) -> tuple[list[int], list[WantedRow]]:
    rows: list[int] = []
    wanted: list[WantedRow] = []
    for s, begin in zip(slices, starts, strict=False):
        if s.score:
            for i, target in enumerate(s.token_ids[1:]):
                rows.append(begin + i)
                wanted.append(WantedRow(s.request_id, None, target))
        if s.sample is not None:
            rows.append(begin + len(s.token_ids) - 1)
            wanted.append(WantedRow(s.request_id, s.sample, -1))
    return rows, wanted
