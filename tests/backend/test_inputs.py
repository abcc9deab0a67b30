"""A plan as arrays: tokens in order, slots through block tables, wanted rows."""

from __future__ import annotations

import numpy as np

from twostroke.backend.inputs import step_arrays
from twostroke.request import SamplingParams
from twostroke.step import BlockCopy, BlockTable, Phase, SampleSpec, Slice, StepPlan

SPEC = SampleSpec(SamplingParams(), seed=1, choice=0, position=40)


def decode(name: str, token_id: int, start: int, table: tuple[int, ...]) -> Slice:
    return Slice(name, Phase.DECODE, (token_id,), start, BlockTable(table), SPEC)


def test_prefill_comes_first_and_slots_follow_the_block_tables() -> None:
    prompt = Slice("p", Phase.PREFILL, tuple(range(100, 120)), 12, BlockTable((5, 2)), SPEC)
    plan = StepPlan(
        prefill=(prompt,),
        decode=(decode("d", 7, 33, (9, 8, 4)),),
        new_blocks=(2, 4),
        copies=(BlockCopy(1, 5, 12),),
    )
    arrays, wanted = step_arrays(plan)
    assert arrays.token_ids.tolist() == [*range(100, 120), 7]
    assert arrays.positions.tolist() == [*range(12, 32), 33]
    assert arrays.slot_mapping.tolist() == [*range(92, 96), *range(32, 48), 65]
    assert arrays.cu_seqlens_q.tolist() == [0, 20, 21]
    assert arrays.context_lens.tolist() == [32, 34]
    assert arrays.block_tables.tolist() == [[5, 2, -1], [9, 8, 4]]
    assert arrays.logit_rows.tolist() == [19, 20]
    assert [row.request_id for row in wanted] == ["p", "d"]
    assert arrays.new_blocks.tolist() == [2, 4]
    assert arrays.copies.tolist() == [[1, 5, 12]]


def test_chunk_that_is_not_the_last_wants_no_row() -> None:
    chunk = Slice("p", Phase.PREFILL, (1, 2, 3), 0, BlockTable((0,)))
    arrays, wanted = step_arrays(StepPlan(prefill=(chunk,)))
    assert arrays.logit_rows.shape == (0,) and wanted == []
    assert arrays.new_blocks.shape == (0,) and arrays.copies.shape == (0, 3)


def test_scored_slice_wants_each_row_that_has_a_next_token_inside() -> None:
    chunk = Slice("p", Phase.PREFILL, (4, 5, 6), 0, BlockTable((0,)), SPEC, score=True)
    arrays, wanted = step_arrays(StepPlan(prefill=(chunk,)))
    assert arrays.logit_rows.tolist() == [0, 1, 2]
    assert arrays.targets == (5, 6, -1)
    assert [row.spec for row in wanted] == [None, None, SPEC]


def test_table_of_a_running_request_grows_block_by_block() -> None:
    table: tuple[int, ...] = ()
    for start in range(600):
        if start % 16 == 0:
            table = (*table, 1000 - start)
        arrays, _ = step_arrays(StepPlan(decode=(decode("d", 1, start, table),)))
        assert arrays.block_tables.tolist() == [list(table)]
        assert arrays.slot_mapping.tolist() == [table[-1] * 16 + start % 16]


def test_the_array_of_a_block_table_is_made_once_and_cannot_be_written() -> None:
    table = BlockTable((3, 4))
    assert table.array is table.array and table.array.tolist() == [3, 4]
    assert not table.array.flags.writeable


def test_arrays_have_the_types_that_kernels_read() -> None:
    arrays, _ = step_arrays(StepPlan(decode=(decode("d", 1, 0, (3,)),)))
    for name in ("token_ids", "positions", "cu_seqlens_q", "context_lens", "block_tables"):
        array = getattr(arrays, name)
        assert array.dtype == np.int32 and array.flags.c_contiguous
    assert arrays.slot_mapping.dtype == np.int64 and arrays.logit_rows.dtype == np.int32
