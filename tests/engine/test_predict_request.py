"""A prediction looks at the scheduler as it stands, changes nothing, and comes true."""

from __future__ import annotations

import asyncio

import pytest

from tests.predict.test_fit import PROFILE
from tests.small_cost import small_cost
from twostroke.cache.manager import KVCacheManager
from twostroke.config import EngineConfig
from twostroke.engine.async_engine import AsyncEngine
from twostroke.engine.engine import Engine
from twostroke.engine.predict_request import RequestPrediction, predict_request
from twostroke.errors import EngineStopped, RequestError
from twostroke.planner.simulated import FakeClock, SimulatedRunner
from twostroke.predict.fitted_speed import assumed_speed
from twostroke.predict.learning import LearningPredictor
from twostroke.predict.predictor import Predictor
from twostroke.request import Request, SamplingParams
from twostroke.scheduler.scheduler import Scheduler
from twostroke.step import StepPlan

BLOCKS = 512
CONFIG = EngineConfig(max_model_len=4096, max_num_seqs=8, target_tpot_s=0.1)


def predictor() -> Predictor:
    return Predictor(small_cost(), assumed_speed(PROFILE))


class Machine:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.predictor = predictor()
        cache = KVCacheManager(BLOCKS)
        self.scheduler = Scheduler(
            CONFIG, cache, self.predictor, clock=self.clock, block_bytes=1000
        )
        runner = SimulatedRunner(BLOCKS, self._cost_s, self.clock)
        self.engine = Engine(self.scheduler, runner, clock=self.clock)
        self.cache = cache

    def _cost_s(self, plan: StepPlan) -> float:
        return self.predictor.step_s(plan) or 0.0

    def add(self, name: str, prompt: tuple[int, ...], output: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        self.engine.add(
            Request(
                id=name, prompt_token_ids=prompt, params=params, seed=0,
                end_token_ids=frozenset(), arrival_s=self.clock.now_s,
            )
        )  # fmt: skip

    def drain(self) -> None:
        while self.engine.has_work:
            self.engine.step()

    def ask(self, prompt: tuple[int, ...], output: int | None, salt: str = "") -> RequestPrediction:
        look = self.scheduler.outlook(prompt, SamplingParams(max_tokens=output), salt)
        return predict_request(
            self.predictor, look, max_tokens=output, prefill_chunk=512, target_tpot_s=0.1
        )


def ids(n: int, start: int = 0) -> tuple[int, ...]:
    return tuple(range(start, start + n))


@pytest.mark.parametrize("num_streams", [0, 3])
def test_the_prediction_of_a_first_token_comes_true(num_streams: int) -> None:
    machine = Machine()
    for i in range(num_streams):
        machine.add(f"s{i}", ids(100, 10_000 * (i + 1)), 600)
    while any(not r.output_token_ids for r in machine.scheduler.sequences()):
        machine.engine.step()
    told = machine.ask(ids(1500), 20)
    assert told.ttft is not None and len(told.outlook.streams) == num_streams
    start = machine.clock.now_s
    machine.add("new", ids(1500), 20)
    while not any(o.request_id == "new" and o.token_ids for o in machine.engine.step()):
        pass
    assert machine.clock.now_s - start == pytest.approx(told.ttft.value, rel=0.1)


def test_what_is_cached_now_is_counted_and_looking_changes_nothing() -> None:
    machine = Machine()
    machine.add("a", ids(1000), 4)
    machine.drain()
    before = (machine.cache.num_available, machine.cache.num_cached_blocks)
    stamps = [n.stamp for n in machine.cache._tree.nodes()]
    told = machine.ask(ids(1200), 10)
    assert told.outlook.num_cached == 1000
    assert told.to_dict()["prompt"] == {"total": 1200, "cached": 1000, "new": 200}
    assert machine.ask(ids(1200), 10, salt="other key").outlook.num_cached == 0
    assert (machine.cache.num_available, machine.cache.num_cached_blocks) == before
    assert [n.stamp for n in machine.cache._tree.nodes()] == stamps
    assert not machine.engine.has_work
    machine.cache.check_integrity()


def test_the_memory_told_is_the_memory_promised() -> None:
    machine = Machine()
    told = machine.ask(ids(1000), 200)
    assert told.outlook.kv_bytes == 75 * 1000  # 1,199 tokens in blocks of 16
    before = machine.cache.num_available
    machine.add("a", ids(1000), 200)
    machine.engine.step()
    assert before - machine.cache.num_available == 75


def test_what_can_never_fit_is_said_with_its_reason() -> None:
    told = Machine().ask(ids(4000), 500)
    found = told.to_dict()
    assert found["fits"] == "no" and "exceed the context" in found["refusal"]
    assert found["kv_bytes"] is None and found["refusal_code"]


def test_an_open_end_leaves_decode_and_total_unknown() -> None:
    told = Machine().ask(ids(100), None).to_dict()
    assert told["ttft_s"] and told["tpot_s"]
    assert told["decode_s"] is told["total_s"] is told["prefill_share"] is None


def test_advice_comes_with_it() -> None:
    told = Machine().ask(ids(1800), 10).to_dict()["advice"]
    assert told["phase"] == "prefill" and told["cures"][0]["saves_low_s"] > 0
    assert "predicted, not measured" in told["notes"]


def test_a_backend_without_peaks_predicts_nothing() -> None:
    look = Machine().scheduler.outlook(ids(50), SamplingParams(max_tokens=5))
    untaught = LearningPredictor.untaught(small_cost()).current
    told = predict_request(
        untaught, look, max_tokens=5, prefill_chunk=512, target_tpot_s=0.1
    ).to_dict()
    assert told["ttft_s"] is told["tpot_s"] is told["advice"] is None
    assert told["missing"] == ["this backend's peaks"] and told["fits"] == "yes"


def test_an_empty_or_impossible_prompt_is_refused() -> None:
    scheduler = Machine().scheduler
    with pytest.raises(RequestError, match="no tokens"):
        scheduler.outlook((), SamplingParams())
    with pytest.raises(RequestError, match="out of range"):
        scheduler.outlook((-1, 5), SamplingParams())


def test_the_engines_thread_answers_and_its_errors_come_back() -> None:
    async def main() -> None:
        engine = AsyncEngine(Machine().engine)
        engine.start()
        params = SamplingParams(max_tokens=4)
        assert (await engine.outlook(ids(40), params)).num_prompt == 40
        with pytest.raises(RequestError, match="no tokens"):
            await engine.outlook((), params)
        engine.shutdown()
        with pytest.raises(EngineStopped):
            await engine.outlook(ids(40), params)

    asyncio.run(main())
