"""Same bits on the sample model, through the whole engine: threads, chunks, neighbours, cache.

Tokens are compared, and every log-probability as the bits of its float32. The portable kernel set
is slow, so it runs shorter prompts through the same tests.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.engine.native_engine import GREEDY, SEEDED, Answer, RealModel
from twostroke.backend.native_library import native_module
from twostroke.config import KvType
from twostroke.model.loaded import load_model
from twostroke.request import SamplingParams

pytestmark = pytest.mark.weights

KERNEL_SETS = tuple(native_module().kernel_sets())
TEXT = Path(__file__).parents[1] / "golden" / "text.txt"
MODES = {"greedy": GREEDY, "seeded": SEEDED}
WHOLE = 4096
NUM_OUTPUT = {"scalar": 2}
LONG = {"scalar": 18}  # more than a block
LONG_FAST = 530  # more than a chunk of 512
SHORT = {"scalar": (1, 2, 3, 5, 2, 4, 1, 3)}
SHORT_FAST = (1, 15, 16, 17, 33, 64, 5, 41)  # both sides of a block, of a tile, of 64 keys


class Case:
    """One kernel set's prompts, and the answers that everything else is compared with."""

    def __init__(self, owner: RealModel, kernel_set: str) -> None:
        self.owner, self.kernel_set = owner, kernel_set
        text = owner.model.tokenizer.encode(TEXT.read_text(encoding="utf-8")[:20_000])
        self.long = text[: LONG.get(kernel_set, LONG_FAST)]
        lengths = SHORT.get(kernel_set, SHORT_FAST)
        self.short = [text[600 + 70 * i :][:n] for i, n in enumerate(lengths)]
        self.base = functools.cache(self._base)

    def params(self, mode: str) -> SamplingParams:
        return dataclasses.replace(MODES[mode], max_tokens=NUM_OUTPUT.get(self.kernel_set, 6))

    def run(
        self, prompts: Sequence[Sequence[int]], mode: str, *, threads: int = 1, chunk: int = WHOLE
    ) -> list[Answer]:
        engine = self.owner.engine(
            self.kernel_set, threads=threads, chunk=chunk, is_cache_enabled=False
        )
        return engine.answers(prompts, self.params(mode))

    def _base(self, index: int | None, mode: str) -> Answer:
        """One thread, alone, the whole prompt at once, no cache."""
        prompt = self.long if index is None else self.short[index]
        return self.run([prompt], mode)[0]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> RealModel:
    return RealModel(load_model(str(smollm2_path)))


@pytest.fixture(scope="module", params=KERNEL_SETS)
def case(request: pytest.FixtureRequest, model: RealModel) -> Case:
    return Case(model, request.param)


@pytest.mark.parametrize("mode", MODES)
def test_bits_do_not_depend_on_the_number_of_threads(case: Case, mode: str) -> None:
    assert case.run([case.long], mode, threads=2) == [case.base(None, mode)]


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 512])
def test_bits_do_not_depend_on_the_prefill_chunk(case: Case, chunk: int) -> None:
    if chunk < 16 and len(case.long) > 100:  # a few hundred steps of one token show no more
        index = case.short.index(max(case.short, key=len))
        assert case.run([case.short[index]], "greedy", chunk=chunk) == [case.base(index, "greedy")]
    else:
        assert case.run([case.long], "greedy", chunk=chunk) == [case.base(None, "greedy")]


@pytest.mark.parametrize(("mode", "threads", "chunk"), [("greedy", 2, WHOLE), ("seeded", 1, 7)])
def test_bits_do_not_depend_on_seven_neighbours(
    case: Case, mode: str, threads: int, chunk: int
) -> None:
    alone = [case.base(i, mode) for i in range(len(case.short))]
    assert case.run(case.short, mode, threads=threads, chunk=chunk) == alone


def test_a_seeded_answer_is_not_the_greedy_one(case: Case) -> None:
    greedy, seeded = case.base(None, "greedy"), case.base(None, "seeded")
    assert len(greedy.token_ids) == case.params("greedy").max_tokens
    assert len(greedy.bits) == 4 * 4 * len(greedy.token_ids)
    assert greedy.bits[:16] != seeded.bits[:16] or greedy.token_ids != seeded.token_ids


@pytest.mark.parametrize("mode", MODES)
def test_a_recomputed_and_a_cached_prompt_give_the_same_bits(case: Case, mode: str) -> None:
    engine = case.owner.engine(case.kernel_set)
    params = case.params(mode)
    cold = engine.answer(case.long, params)
    warm = engine.answer(case.long, params)
    assert [engine.final[i].record.prompt.cached for i in ("r1", "r2")] == [0, len(case.long) - 1]
    assert cold == warm == case.base(None, mode)


@pytest.mark.parametrize("kv_type", [KvType.F16, KvType.Q8])
def test_the_other_cache_types_keep_their_bits_too(case: Case, kv_type: KvType) -> None:
    """Cold and whole, in chunks beside neighbours, behind a head that ends inside a block."""
    prompt, params = case.long[:70], case.params("greedy")
    cold = case.owner.engine(case.kernel_set, kv_type=kv_type).answer(prompt, params)
    crowd = case.owner.engine(case.kernel_set, kv_type=kv_type, chunk=16, threads=2)
    assert crowd.answers([*case.short[:3], prompt], params)[3] == cold
    warm = case.owner.engine(case.kernel_set, kv_type=kv_type)
    shared = len(prompt) * 2 // 3
    warm.answer((*prompt[:shared], 7), params)
    request = warm.add(prompt, params)
    warm.run()
    assert warm.final[request.id].record.prompt.cached == shared
    assert warm.result(request) == cold
    assert cold != case.base(None, "greedy")
