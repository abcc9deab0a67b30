"""The whole engine on the native backend and a real model, for tests that compare bits."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.simulation import EventLog
from tests.small_cost import small_cost
from twostroke.backend.native import NativeModel
from twostroke.backend.native_library import native_module
from twostroke.backend.native_weights import pack_weights
from twostroke.backend.runner import ModelRunner
from twostroke.cache.manager import KVCacheManager
from twostroke.config import EngineConfig, KvType
from twostroke.engine.engine import Engine
from twostroke.meters.phase_meter import PhaseMeter
from twostroke.model.loaded import LoadedModel
from twostroke.predict.learning import LearningPredictor
from twostroke.request import Request, RequestOutput, SamplingParams
from twostroke.scheduler.scheduler import Scheduler
from twostroke.scheduler.sequence import Sequence
from twostroke.step import BLOCK_SIZE

Ids = list[int] | tuple[int, ...]
GREEDY = SamplingParams(temperature=0.0, logprobs=3, ignore_eos=True, max_tokens=6)
SEEDED = SamplingParams(
    temperature=0.9,
    top_p=0.95,
    min_p=0.01,
    repetition_penalty=1.1,
    seed=20,
    logprobs=3,
    ignore_eos=True,
    max_tokens=6,
)


@dataclass(frozen=True)
class Answer:
    """Tokens, and every log-probability as its bits: chosen, then the best alternatives."""

    token_ids: tuple[int, ...]
    top_ids: tuple[int, ...]
    bits: bytes


class RealModel:
    """A model opened and packed once; makes engines of any shape."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.pools = {n: native_module().ThreadPool(n) for n in (1, 2)}
        self.packed = pack_weights(model.weights, self.pools[2])

    def engine(self, kernel_set: str, **shape: Any) -> RealEngine:
        return RealEngine(self, kernel_set, **shape)


class RealEngine:
    """Real scheduler, cache, meter and forward pass; requests are added and stepped by hand."""

    def __init__(
        self,
        owner: RealModel,
        kernel_set: str,
        *,
        threads: int = 1,
        chunk: int = 4096,
        num_blocks: int = 256,
        growth_tokens: int = 256,
        max_num_seqs: int = 16,
        max_waiting: int = 1024,
        is_cache_enabled: bool = True,
        target_tpot_s: float = 60.0,
        is_logged: bool = True,
        kv_type: KvType = KvType.BF16,
    ) -> None:
        config = EngineConfig(
            kv_type=kv_type,
            prefill_chunk=chunk,
            max_num_seqs=max_num_seqs,
            max_model_len=num_blocks * BLOCK_SIZE,
            target_tpot_s=target_tpot_s,
        )
        self.backend = NativeModel(
            owner.model.config,
            owner.model.weights,
            owner.packed,
            num_blocks=num_blocks,
            kv_type=kv_type,
            max_tokens=chunk + max_num_seqs,
            kernel_set=kernel_set,
            pool=owner.pools[threads],
        )
        self.cache = KVCacheManager(num_blocks, is_enabled=is_cache_enabled)
        predictor = LearningPredictor.untaught(small_cost())
        self.scheduler = Scheduler(
            config,
            self.cache,
            predictor,
            clock=time.monotonic,
            growth_tokens=growth_tokens,
            max_waiting=max_waiting,
        )
        self.meter, self.log = PhaseMeter(), EventLog()
        self.engine = Engine(
            self.scheduler,
            ModelRunner(self.backend),
            meter=self.meter,
            observers=(self.log,) if is_logged else (),
            predictor=predictor,
        )
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.final: dict[str, RequestOutput] = {}
        self._serial = 0

    def add(
        self,
        prompt: Ids,
        params: SamplingParams,
        *,
        salt: str = "",
        end_token_ids: frozenset[int] = frozenset(),
    ) -> Sequence:
        self._serial += 1
        request = Request(
            id=f"r{self._serial}",
            prompt_token_ids=tuple(prompt),
            params=params,
            seed=params.seed or 0,
            end_token_ids=end_token_ids,
            arrival_s=time.monotonic(),
            salt=salt,
        )
        self.engine.add(request)
        self.outputs[request.id] = []
        return self.scheduler.get(request.id)

    def take(self, outputs: Iterable[RequestOutput | None]) -> None:
        for output in outputs:
            if output is None:
                continue
            self.outputs[output.request_id].append(output)
            if output.finish_reason is not None:
                assert output.request_id not in self.final, "two final outputs"
                assert output.error is None, output.error
                self.final[output.request_id] = output

    def step(self) -> None:
        self.take(self.engine.step())

    def abort(self, request: Sequence) -> None:
        self.take([self.engine.abort(request.id)])

    def run(self) -> None:
        while self.engine.has_work:
            self.step()
        self.cache.check_integrity()

    def result(self, request: Sequence) -> Answer:
        outputs = self.outputs[request.id]
        logprobs = [p for o in outputs for p in o.logprobs]
        values = [v for p in logprobs for v in (p.logprob, *(value for _, value in p.top))]
        bits = np.array(values, np.float32)
        assert bits.tolist() == values, "the kernels' logprobs are float32"
        return Answer(
            tuple(i for o in outputs for i in o.token_ids),
            tuple(i for p in logprobs for i, _ in p.top),
            bits.tobytes(),
        )

    def answer(self, prompt: Ids, params: SamplingParams, **kwargs: Any) -> Answer:
        """Run one request to its end."""
        request = self.add(prompt, params, **kwargs)
        self.run()
        return self.result(request)

    def answers(self, prompts: list[Ids], params: SamplingParams) -> list[Answer]:
        """Run requests side by side."""
        requests = [self.add(prompt, params) for prompt in prompts]
        self.run()
        return [self.result(r) for r in requests]
