"""One native call a step: blocks prepared, tokens sampled, nonsense refused, idle pools asleep."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.backend.native_runs import arrays_of, make_model, piece, read_kv
from tests.golden_data import open_model
from tests.tiny_models import write_named
from twostroke.backend.arrays import StepArrays
from twostroke.backend.native import NativeModel
from twostroke.backend.native_library import choose_kernel_set, native_module
from twostroke.errors import InvalidSampling, ShapeError, UnsupportedCPU
from twostroke.request import SamplingParams
from twostroke.sampling import row_sampling, sample
from twostroke.step import BLOCK_SIZE, SampleSpec

MAX_TOKENS = 48
IDS = tuple(range(3, 3 + MAX_TOKENS))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NativeModel:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_named(path, "llama-4bit")
    file, config, weights = open_model(path)
    with file:
        return make_model(
            config,
            weights,
            kernel_set=choose_kernel_set(),
            threads=2,
            max_tokens=MAX_TOKENS,
        )


def changed(arrays: StepArrays, **fields: object) -> StepArrays:
    return dataclasses.replace(arrays, **fields)  # type: ignore[arg-type]


def with_samples(arrays: StepArrays, *specs: SampleSpec | None, target: int = -1) -> StepArrays:
    return changed(arrays, specs=specs, targets=(target,) * len(specs))


def step_of(num_tokens: int, rows: list[int]) -> StepArrays:
    return arrays_of([piece("r", IDS, 0, num_tokens, 0)], rows=rows)


def spec(**fields: object) -> SampleSpec:
    params = SamplingParams(**{"temperature": 0.0, **fields})  # type: ignore[arg-type]
    return SampleSpec(params, seed=7, choice=0, position=5, prompt_ids=IDS[:5], output_ids=(9, 9))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": 5},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
        {"temperature": 1.5, "min_p": 0.05},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"logit_bias": ((4, 50.0), (5, -50.0))},
        {"logit_bias": ((4, -100.0),), "temperature": 0.7, "repetition_penalty": 0.5},
    ],
)
def test_a_step_chooses_what_the_reference_sampler_chooses(
    model: NativeModel, fields: dict[str, object]
) -> None:
    arrays = step_of(5, [4, 2])
    logits = model.logits(arrays)
    results = model.step(with_samples(arrays, spec(**fields), spec(logprobs=3)))
    for row, chosen_by in enumerate((spec(**fields), spec(logprobs=3))):
        expected = sample(logits[row], row_sampling(chosen_by))
        assert results["token_id"][row] == expected.token_id
        if expected.logprob is None:
            assert np.isnan(results["logprob"][row])
            continue
        assert results["logprob"][row] == pytest.approx(expected.logprob.logprob, abs=1e-4)
        top = results["top_ids"][row][: results["num_top"][row]].tolist()
        assert top == [token_id for token_id, _ in expected.logprob.top]


def test_a_scored_row_gives_the_log_probability_of_its_target(model: NativeModel) -> None:
    arrays = step_of(6, [1, 3])
    logits = model.logits(arrays).astype(np.float64)
    results = model.step(with_samples(arrays, None, None, target=11))
    expected = logits[:, 11] - np.log(np.exp(logits).sum(axis=-1))
    np.testing.assert_allclose(results["target_logprob"], expected, atol=1e-4)


def test_bias_outside_the_vocabulary_is_refused(model: NativeModel) -> None:
    arrays = step_of(2, [1])
    bad = spec(logit_bias=((model.config.vocab_size, 1.0),))
    with pytest.raises(InvalidSampling, match="outside the vocabulary"):
        model.step(with_samples(arrays, bad))


def test_a_new_block_is_zeroed_and_a_copied_one_keeps_its_first_tokens(model: NativeModel) -> None:
    model.logits(step_of(2 * BLOCK_SIZE, [0]))  # fills blocks 7 and 6
    first, last = 7 * BLOCK_SIZE, 7 * BLOCK_SIZE + BLOCK_SIZE - 1
    kept = [read_kv(model, layer, first) for layer in range(model.config.num_layers)]
    assert all(np.abs(kv).max() > 0 for kv in kept)
    copies = np.array([[7, 20, 3]], np.int32)
    model.logits(changed(step_of(1, []), copies=copies))
    for layer in range(model.config.num_layers):
        for slot in range(BLOCK_SIZE):
            source = read_kv(model, layer, first + slot)
            target = read_kv(model, layer, 20 * BLOCK_SIZE + slot)
            assert np.array_equal(target, source if slot < 3 else np.zeros_like(source))
    other = arrays_of([piece("s", IDS, 0, 1, 8)], rows=[], new_blocks=(7,))
    model.logits(other)
    for layer in range(model.config.num_layers):
        assert not read_kv(model, layer, first).any() and not read_kv(model, layer, last).any()


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("token_ids", np.full(3, 1 << 20, np.int32), "outside the vocabulary"),
        ("token_ids", np.full(3, -1, np.int32), "outside the vocabulary"),
        ("token_ids", np.zeros(2, np.int32), "differ in length"),
        ("slot_mapping", np.full(3, 1 << 40, np.int64), "slot is outside"),
        ("context_lens", np.array([2], np.int32), "shorter than its tokens"),
        ("context_lens", np.array([500], np.int32), "longer than its block table"),
        ("block_tables", np.array([[-1]], np.int32), "block id is outside"),
        ("block_tables", np.array([[1 << 20]], np.int32), "block id is outside"),
        ("cu_seqlens_q", np.array([0, 2], np.int32), "cu_seqlens_q"),
        ("logit_rows", np.array([3], np.int32), "logit row is outside"),
        ("new_blocks", np.array([-3], np.int32), "new block is outside"),
        ("copies", np.array([[0, 1 << 20, 1]], np.int32), "copy is outside"),
        ("copies", np.array([[0, 1, 17]], np.int32), "copy is outside"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    model: NativeModel, field: str, value: np.ndarray, why: str
) -> None:
    with pytest.raises(ShapeError, match=why):
        model.logits(changed(step_of(3, [2]), **{field: value}))


def test_more_tokens_than_a_step_holds_are_refused(model: NativeModel) -> None:
    ids = tuple(range(MAX_TOKENS + 1))
    with pytest.raises(ShapeError, match=f"{MAX_TOKENS + 1} tokens exceeds"):
        model.logits(arrays_of([piece("r", ids, 0, len(ids), 0)], rows=[0]))


def test_rope_tables_grow_with_the_positions_and_change_no_bit(model: NativeModel) -> None:
    arrays = step_of(9, [8])
    before = model.logits(arrays)
    model._rope.cover(5000)
    assert np.array_equal(model.logits(arrays), before)


def test_the_profile_names_every_kind_of_section_and_is_off_by_default(model: NativeModel) -> None:
    arrays = step_of(MAX_TOKENS, [0])
    model.logits(arrays)
    assert model.take_profile() == ()
    model.profile(True)
    model.logits(arrays)
    model.profile(False)
    lines = model.take_profile()
    labels = {line.label for line in lines}
    assert {"attn_q+attn_k+attn_v", "ffn_gate+ffn_up", "ffn_down", "attend"} <= labels
    assert all(line.seconds > 0 and line.calls > 0 for line in lines)


def test_steps_of_several_python_threads_take_turns(model: NativeModel) -> None:
    arrays = step_of(20, [19])
    expected = model.logits(arrays)
    results: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: results.append(model.logits(arrays))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(np.array_equal(r, expected) for r in results)


def test_an_idle_pool_sleeps(model: NativeModel) -> None:
    model.logits(step_of(4, [3]))
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1  # a spinning worker would burn the whole half second


def test_a_pool_of_more_threads_than_cores_still_ends(model: NativeModel) -> None:
    many = make_model(
        model.config,
        model.weights,
        kernel_set=model.kernel_set,
        threads=9,
        max_tokens=MAX_TOKENS,
    )
    arrays = step_of(MAX_TOKENS, [0, 40])
    assert np.array_equal(many.logits(arrays), model.logits(arrays))


def test_an_unknown_kernel_set_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedCPU, match="sse9"):
        choose_kernel_set("sse9")


def test_a_pool_without_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="threads"):
        native_module().ThreadPool(0)


def test_profile_of_the_machine_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twostroke.backend import calibrate

    monkeypatch.setattr(calibrate, "_SECONDS_PER_POINT", 0.002)
    monkeypatch.setattr(calibrate, "_WORKING_SETS", (1 << 16, 1 << 20))
    pool = native_module().ThreadPool(2)
    for kernel_set in native_module().kernel_sets():
        measured = calibrate.load_profile(tmp_path, pool, kernel_set)
        assert min(measured.int8_ops_per_s, measured.bf16_flops_per_s) > 1e8
        assert [size for size, rate in measured.bandwidth if rate > 1e8] == [1 << 16, 1 << 20]
        assert calibrate.load_profile(tmp_path, pool, kernel_set) == measured
        path = calibrate.profile_path(tmp_path, kernel_set, 2)
        path.write_text("{}")
        assert calibrate.load_profile(tmp_path, pool, kernel_set).kernel_set == kernel_set
        assert path.read_text() != "{}"
