"""Rows C, D, K and M of the engine cases on the sample model with the native kernels.

What tests/engine/test_engine_reports.py shows of the scheduler on a simulated model is shown here
of the numbers: each answer, however it was computed, has the bits of the same request alone and
cold.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.native_engine import GREEDY, SEEDED, Answer, RealEngine, RealModel
from twostroke.backend.native_library import native_module
from twostroke.events import Preempted
from twostroke.model.loaded import load_model
from twostroke.predict.kv import kv_block_bytes, kv_format
from twostroke.predict.shape import config_layers
from twostroke.request import FinishReason, SamplingParams

KERNEL_SETS = tuple(native_module().kernel_sets())
FAST_SETS = tuple(name for name in KERNEL_SETS if name != "scalar")
TEXT = Path(__file__).parents[1] / "golden" / "text.txt"
PREFIXES = (1, 15, 16, 17, 31, 32, 33)
NUM_PROMPTS = 16

pytestmark = pytest.mark.weights


class Bench:
    """One kernel set: prompts cut from a text, and each one's answer alone on a cold engine."""

    def __init__(self, owner: RealModel, kernel_set: str) -> None:
        self.owner, self.kernel_set = owner, kernel_set
        self.is_slow = kernel_set == "scalar"
        self.text = owner.model.tokenizer.encode(TEXT.read_text(encoding="utf-8")[:20_000])
        self.alone = functools.cache(self._alone)

    def params(self, i: int, num_tokens: int | None = None) -> SamplingParams:
        """Greedy for even numbers, seeded for odd ones."""
        wanted = num_tokens or (2 if self.is_slow else 5)
        if i % 2:
            return dataclasses.replace(SEEDED, seed=100 + i, max_tokens=wanted)
        return dataclasses.replace(GREEDY, max_tokens=wanted)

    def prompt(self, i: int) -> tuple[int, ...]:
        length = 1 + i % 4 if self.is_slow else 3 + 5 * i
        return tuple(self.text[97 * i : 97 * i + length])

    def engine(self, **shape: object) -> RealEngine:
        return self.owner.engine(self.kernel_set, **shape)

    def _alone(self, prompt: tuple[int, ...], params: SamplingParams) -> Answer:
        return self.engine(is_cache_enabled=False).answer(prompt, params)


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> RealModel:
    return RealModel(load_model(str(smollm2_path)))


@pytest.fixture(scope="module")
def bench_of(model: RealModel) -> Callable[[str], Bench]:
    return functools.cache(lambda kernel_set: Bench(model, kernel_set))


@pytest.fixture(params=KERNEL_SETS)
def bench(request: pytest.FixtureRequest, bench_of: Callable[[str], Bench]) -> Bench:
    return bench_of(request.param)


@pytest.fixture(params=FAST_SETS)
def fast_bench(request: pytest.FixtureRequest, bench_of: Callable[[str], Bench]) -> Bench:
    return bench_of(request.param)


def test_d1_d8_sixteen_prompts_answer_together_as_each_alone(bench: Bench) -> None:
    engine = bench.engine(chunk=128, threads=2)
    numbers = range(0, NUM_PROMPTS, 4) if bench.is_slow else range(NUM_PROMPTS)
    asked = {i: engine.add(bench.prompt(i), bench.params(i)) for i in numbers}
    engine.run()
    for i, request in asked.items():
        assert engine.result(request) == bench.alone(bench.prompt(i), bench.params(i)), i


@pytest.mark.parametrize("mode", [0, 1], ids=["greedy", "seeded"])
def test_c14_any_cached_prefix_gives_the_bits_of_a_cold_start(bench: Bench, mode: int) -> None:
    if bench.is_slow and mode:
        return
    prompt, other = tuple(bench.text[:35]), bench.text[3000:3040]
    params = bench.params(mode)
    engine = bench.engine()
    for prefix in (17, 32) if bench.is_slow else PREFIXES:
        salt = str(prefix)
        head = (*prompt[:prefix], other[prefix])
        engine.answer(head, bench.params(0, 1), salt=salt)
        assert head[prefix] != prompt[prefix]
        request = engine.add(prompt, params, salt=salt)
        engine.run()
        assert engine.final[request.id].record.prompt.cached == prefix
        assert engine.result(request) == bench.alone(prompt, params), prefix


def test_c4_c14_a_whole_cached_prompt_computes_one_token_and_gives_the_same_bits(
    bench: Bench,
) -> None:
    engine = bench.engine()
    for length in (16,) if bench.is_slow else (1, 16, 35):
        prompt = tuple(bench.text[:length])
        for cached in (0, length - 1):
            request = engine.add(prompt, bench.params(0), salt=str(length))
            engine.run()
            record = engine.final[request.id].record
            assert (record.prompt.cached, record.prompt.new) == (cached, length - cached)
            assert engine.result(request) == bench.alone(prompt, bench.params(0))


def test_c3_each_turn_reuses_the_turn_before_and_its_answer(fast_bench: Bench) -> None:
    engine = fast_bench.engine()
    prompt = fast_bench.prompt(6)
    before = 0
    for turn in range(4):
        request = engine.add(prompt, fast_bench.params(turn))
        engine.run()
        answer = engine.result(request)
        assert engine.final[request.id].record.prompt.cached == before
        assert answer == fast_bench.alone(prompt, fast_bench.params(turn))
        before = len(prompt) + len(answer.token_ids) - 1
        prompt = (*prompt, *answer.token_ids, *fast_bench.text[3000 + 9 * turn :][:9])


def test_c_four_cold_requests_with_one_head_share_its_blocks_and_keep_their_bits(
    fast_bench: Bench,
) -> None:
    head = tuple(fast_bench.text[:70])
    engine = fast_bench.engine(chunk=32)
    prompts = [(*head, *fast_bench.text[1000 + 20 * i :][: 3 + i]) for i in range(4)]
    asked = [engine.add(p, fast_bench.params(i)) for i, p in enumerate(prompts)]
    engine.run()
    computed = [engine.final[r.id].record.prompt.new for r in asked]
    assert sum(computed) <= len(head) + sum(len(p) - len(head) for p in prompts) + 3
    for i, request in enumerate(asked):
        assert engine.result(request) == fast_bench.alone(prompts[i], fast_bench.params(i)), i


def test_d_preemption_changes_no_bit(bench: Bench) -> None:
    """Undeclared lengths in a pool that holds two of four: they lose their blocks and come back."""
    count = 2 if bench.is_slow else 4
    num_tokens = 6 if bench.is_slow else 20
    prompts = [tuple(bench.text[50 * i : 50 * i + 14]) for i in range(count)]
    engine = bench.engine(num_blocks=2 if bench.is_slow else 6, growth_tokens=1, chunk=8)
    asked = [
        engine.add(p, dataclasses.replace(bench.params(i), max_tokens=None))
        for i, p in enumerate(prompts)
    ]
    while engine.engine.has_work:
        engine.step()
        for request in asked:
            if request.finish_reason is None and request.num_output_tokens >= num_tokens:
                engine.take([engine.engine.stop(request.id, None, num_tokens)])
    engine.cache.check_integrity()
    assert engine.log.of(Preempted), "nobody was preempted"
    for i, request in enumerate(asked):
        alone = bench.alone(prompts[i], bench.params(i, num_tokens))
        assert engine.result(request) == alone, i


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_d_x4_a_neighbour_cancelled_at_a_random_moment_changes_no_bit(
    fast_bench: Bench, seed: int
) -> None:
    rng = random.Random(seed)
    engine = fast_bench.engine(chunk=32, num_blocks=40)
    numbers = rng.sample(range(NUM_PROMPTS), 8)
    asked = {i: engine.add(fast_bench.prompt(i), fast_bench.params(i)) for i in numbers}
    leavers = {i: rng.randrange(12) for i in numbers[:3]}
    for moment in range(12):
        for i, leaves_at in leavers.items():
            if leaves_at == moment and asked[i].finish_reason is None:
                engine.abort(asked[i])
        engine.step()
        engine.cache.check_integrity()
    engine.run()
    for i, request in asked.items():
        alone = fast_bench.alone(fast_bench.prompt(i), fast_bench.params(i))
        answer = engine.result(request)
        if request.finish_reason is FinishReason.CANCELLED:
            n = len(answer.token_ids)
            assert i in leavers and answer.token_ids == alone.token_ids[:n]
            assert answer.bits == alone.bits[: len(answer.bits)]
        else:
            assert answer == alone, i


def test_d3_d4_equal_seeds_agree_side_by_side_and_other_seeds_differ(fast_bench: Bench) -> None:
    engine = fast_bench.engine()
    params = fast_bench.params(1, 8)
    other = dataclasses.replace(params, seed=999)
    asked = [engine.add(fast_bench.prompt(4), p) for p in (params, params, other)]
    engine.run()
    first, second, third = (engine.result(r) for r in asked)
    assert first == second
    assert first.token_ids != third.token_ids


def test_d7_decoding_gives_the_bits_of_a_full_recompute(fast_bench: Bench) -> None:
    """Token by token with the cache, then each prefix again as a prompt of its own."""
    prompt, params = fast_bench.prompt(6), fast_bench.params(0, 6)
    whole = fast_bench.alone(prompt, params)
    size = len(whole.bits) // len(whole.token_ids)
    for n in range(1, len(whole.token_ids)):
        again = fast_bench.alone((*prompt, *whole.token_ids[:n]), fast_bench.params(0, 1))
        assert again.token_ids == whole.token_ids[n : n + 1]
        assert again.bits == whole.bits[n * size : (n + 1) * size]


def test_m9_the_kv_cache_takes_the_bytes_that_were_planned(model: RealModel) -> None:
    layers, kv = config_layers(model.model.config), kv_format("bf16")
    for num_blocks in (1, 64, 1000):
        engine = model.engine(KERNEL_SETS[0], num_blocks=num_blocks)
        planned = num_blocks * kv_block_bytes(layers, kv)
        assert abs(engine.backend.kv_bytes - planned) <= 0.02 * planned


@pytest.mark.models
@pytest.mark.parametrize("family", ["gemma3_path", "qwen2_path"])
def test_c7_every_architecture_reuses_a_prefix_bit_for_bit(
    request: pytest.FixtureRequest, family: str
) -> None:
    """Gemma's sliding windows included: its prompt is longer than a window of 512."""
    owner = RealModel(load_model(str(request.getfixturevalue(family))))
    bench = Bench(owner, KERNEL_SETS[0])
    prompt = tuple(bench.text[:560])
    engine = bench.engine(chunk=256)
    for prefix in (17, 530):
        salt = str(prefix)
        engine.answer((*prompt[:prefix], 7), bench.params(0, 1), salt=salt)
        again = engine.add(prompt, bench.params(0), salt=salt)
        engine.run()
        assert engine.final[again.id].record.prompt.cached == prefix
        assert engine.result(again) == bench.alone(prompt, bench.params(0))
