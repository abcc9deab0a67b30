"""The runner on real backends: what a plan samples and scores, native and reference alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tests.golden_data import open_model
from tests.tiny_models import write_named
from twostroke.backend.native import NativeModel
from twostroke.backend.native_library import native_module
from twostroke.backend.native_weights import pack_weights
from twostroke.backend.reference_model import ReferenceModel
from twostroke.backend.runner import ModelRunner
from twostroke.config import KvType
from twostroke.errors import ShapeError
from twostroke.model.config import ModelConfig
from twostroke.model.weights import ModelWeights
from twostroke.request import SamplingParams
from twostroke.step import BlockTable, Phase, SampleSpec, Slice, StepPlan

PROMPT = tuple(range(10, 40))
TABLE = BlockTable((3, 1, 2, 0))
Model = tuple[ModelConfig, ModelWeights]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_named(path, "llama")  # float weights: both backends choose the same tokens
    file, config, weights = open_model(path)
    with file:
        return config, weights


def native(model: Model, max_tokens: int = 64) -> ModelRunner:
    config, weights = model
    pool = native_module().ThreadPool(2)
    return ModelRunner(
        NativeModel(
            config,
            weights,
            pack_weights(weights, pool),
            num_blocks=8,
            kv_type=KvType.F16,
            max_tokens=max_tokens,
            pool=pool,
        )
    )


def eager(model: Model, max_tokens: int = 64) -> ModelRunner:
    backend = ReferenceModel(*model, num_blocks=8, kv_type=KvType.F16, max_tokens=max_tokens)
    return ModelRunner(backend)


def spec(position: int, **fields: object) -> SampleSpec:
    params = SamplingParams(**{"temperature": 0.0, **fields})  # type: ignore[arg-type]
    return SampleSpec(params, seed=5, choice=0, position=position)


def generate(runner: ModelRunner, num_tokens: int, **fields: object) -> list[int]:
    """Prefill in two chunks, then decode."""
    first = Slice("r", Phase.PREFILL, PROMPT[:20], 0, BlockTable(TABLE[:2]))
    assert runner.run(StepPlan(prefill=(first,), new_blocks=TABLE)).sampled == {}
    ids: Sequence[int] = PROMPT[20:]
    start, out, phase = 20, [], Phase.PREFILL
    for _ in range(num_tokens):
        end = start + len(ids)
        step = Slice("r", phase, tuple(ids), start, TABLE, spec(end, **fields))
        plan = StepPlan(prefill=(step,)) if phase is Phase.PREFILL else StepPlan(decode=(step,))
        result = runner.run(plan)
        assert 0.0 < result.start_s <= result.end_s
        out.append(result.sampled["r"].token_id)
        ids, start, phase = out[-1:], end, Phase.DECODE
    return out


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9, "top_k": 30}])
def test_native_generates_what_the_reference_generates(
    model: Model, fields: dict[str, object]
) -> None:
    assert generate(native(model), 16, **fields) == generate(eager(model), 16, **fields)


def test_logprobs_come_with_the_chosen_token(model: Model) -> None:
    plan = StepPlan(prefill=(Slice("r", Phase.PREFILL, PROMPT, 0, TABLE, spec(30, logprobs=4)),))
    ours, theirs = (runner.run(plan).sampled["r"] for runner in (native(model), eager(model)))
    assert ours.token_id == theirs.token_id
    assert ours.logprob is not None and theirs.logprob is not None
    assert ours.logprob.token_id == ours.token_id
    assert ours.logprob.logprob == pytest.approx(theirs.logprob.logprob, abs=1e-3)
    assert [i for i, _ in ours.logprob.top] == [i for i, _ in theirs.logprob.top]


def test_scores_are_the_log_probabilities_of_the_next_tokens(model: Model) -> None:
    step = Slice("r", Phase.PREFILL, PROMPT, 0, TABLE, spec(30), score=True)
    results = [runner.run(StepPlan(prefill=(step,))) for runner in (native(model), eager(model))]
    ours, theirs = (result.scores["r"] for result in results)
    assert len(ours) == len(PROMPT) - 1 and all(math.isfinite(s) and s < 0 for s in ours)
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert results[0].sampled["r"].token_id == results[1].sampled["r"].token_id


def test_each_request_of_a_batch_gets_its_own_token(model: Model) -> None:
    prompts = {"a": PROMPT[:7], "b": PROMPT[7:9], "c": PROMPT[9:20]}
    slices = [
        Slice(name, Phase.PREFILL, ids, 0, BlockTable((i, i + 4)), spec(len(ids)))
        for i, (name, ids) in enumerate(prompts.items())
    ]
    together = native(model).run(StepPlan(prefill=tuple(slices))).sampled
    for s in slices:
        assert native(model).run(StepPlan(prefill=(s,))).sampled == {
            s.request_id: together[s.request_id]
        }


@pytest.mark.parametrize("make", [native, eager])
def test_a_step_beyond_the_backend_is_refused(model: Model, make: object) -> None:
    runner = make(model, max_tokens=8)  # type: ignore[operator]
    step = Slice("r", Phase.PREFILL, PROMPT[:9], 0, TABLE)
    with pytest.raises(ShapeError, match="9"):
        runner.run(StepPlan(prefill=(step,)))


def test_a_plan_without_slices_prepares_blocks_only(model: Model) -> None:
    result = native(model).run(StepPlan(new_blocks=(1, 2)))
    assert result.sampled == {} and result.scores == {}
