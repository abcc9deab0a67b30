"""A StepPlan as arrays: what each token is, where it stands, and which rows are wanted.

Knows no backend. The block tables of running requests are kept, so that a decode step only appends.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import numpy.typing as npt

from twostroke.backend.arrays import Int32s, StepArrays
from twostroke.dataclass import dataclass
from twostroke.step import BLOCK_SIZE, SampleSpec, Slice, StepPlan

_NO_BLOCKS = np.zeros(0, np.int32)
_NO_COPIES = np.zeros((0, 3), np.int32)
_NO_TABLES = np.zeros((0, 0), np.int32)


@dataclass(slots=True)
class _Table:
    """Block ids of one request, as the plan gave them and as an array with room to grow."""

    ids: tuple[int, ...]
    array: Int32s  # [capacity]

    def extend(self, ids: tuple[int, ...]) -> None:
        kept = len(self.ids)
        if ids[:kept] != self.ids:
            kept = 0  # preempted since: the request has other blocks now
        if len(ids) > len(self.array):
            grown = np.empty(max(2 * len(self.array), len(ids), 16), np.int32)
            grown[:kept] = self.array[:kept]
            self.array = grown
        if kept < len(ids):
            self.array[kept : len(ids)] = ids[kept:]
        self.ids = ids


@dataclass(frozen=True, slots=True)
class WantedRow:
    """What one wanted row is for: a choice, the score of the token after it, or both."""

    request_id: str
    spec: SampleSpec | None
    target: int  # -1: none


class InputBuilder:
    """Builds the arrays of each step. Sole owner of the block tables it keeps."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}

    def forget(self, request_id: str) -> None:
        """Drop the block table of a request that has ended."""
        self._tables.pop(request_id, None)

    def build(self, plan: StepPlan) -> tuple[StepArrays, list[WantedRow]]:
        """Return the arrays of a plan, prefill first, and what each wanted row is for.

        Shapes: T tokens, S slices, R wanted rows, as in StepArrays
        """
        slices = plan.slices
        tables = [self._table(s) for s in slices]
        counts = [len(s.token_ids) for s in slices]
        cu = np.zeros(len(slices) + 1, np.int32)
        np.cumsum(counts, out=cu[1:])
        total = int(cu[-1])
        token_ids = np.fromiter(chain.from_iterable(s.token_ids for s in slices), np.int32, total)
        positions = np.empty(total, np.int32)
        slots = np.empty(total, np.int64)
        for s, table, begin, count in zip(slices, tables, cu.tolist(), counts, strict=False):
            _place(s, table, positions[begin : begin + count], slots[begin : begin + count])
        rows, wanted = _wanted_rows(slices, cu.tolist())
        arrays = StepArrays(
            token_ids=token_ids,
            positions=positions,
            slot_mapping=slots,
            cu_seqlens_q=cu,
            context_lens=np.array([s.end for s in slices], np.int32),
            block_tables=_stack(slices, tables),
            logit_rows=np.array(rows, np.int32),
            specs=tuple(row.spec for row in wanted),
            targets=tuple(row.target for row in wanted),
            new_blocks=np.array(plan.new_blocks, np.int32) if plan.new_blocks else _NO_BLOCKS,
            copies=np.array([(c.source, c.target, c.num_tokens) for c in plan.copies], np.int32)
            if plan.copies
            else _NO_COPIES,
        )
        return arrays, wanted

    def _table(self, s: Slice) -> Int32s:
        table = self._tables.get(s.request_id)
        if table is None:
            table = self._tables[s.request_id] = _Table((), np.empty(0, np.int32))
        table.extend(s.block_table)
        return table.array


def _place(s: Slice, table: Int32s, positions: Int32s, slots: npt.NDArray[np.int64]) -> None:
    if len(s.token_ids) == 1:
        positions[0] = s.start
        slots[0] = int(table[s.start // BLOCK_SIZE]) * BLOCK_SIZE + s.start % BLOCK_SIZE
        return
    positions[:] = np.arange(s.start, s.end, dtype=np.int32)
    blocks = table[positions // BLOCK_SIZE].astype(np.int64)
    slots[:] = blocks * BLOCK_SIZE + positions % BLOCK_SIZE


def _stack(slices: tuple[Slice, ...], tables: list[Int32s]) -> Int32s:
    """Return [S, widest table], -1 past the end of each."""
    if not slices:
        return _NO_TABLES
    if len(slices) == 1:
        return tables[0][: len(slices[0].block_table)].reshape(1, -1)
    lengths = [len(s.block_table) for s in slices]
    stacked = np.full((len(slices), max(lengths)), -1, np.int32)
    for i, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        stacked[i, :length] = table[:length]
    return stacked


def _wanted_rows(slices: tuple[Slice, ...], cu: list[int]) -> tuple[list[int], list[WantedRow]]:
    rows: list[int] = []
    wanted: list[WantedRow] = []
    for s, begin in zip(slices, cu, strict=False):
        if s.score:
            for i, target in enumerate(s.token_ids[1:]):
                rows.append(begin + i)
                wanted.append(WantedRow(s.request_id, None, target))
        if s.sample is not None:
            rows.append(begin + len(s.token_ids) - 1)
            wanted.append(WantedRow(s.request_id, s.sample, -1))
    return rows, wanted
