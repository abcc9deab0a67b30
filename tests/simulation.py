"""An engine on the simulated runner and a fake clock, for tests of everything above the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.small_cost import small_cost
from twostroke.cache.manager import KVCacheManager
from twostroke.config import EngineConfig
from twostroke.engine.engine import Engine
from twostroke.events import Event
from twostroke.meters.phase_meter import PhaseMeter
from twostroke.planner.simulated import FakeClock, LinearCost, SimulatedRunner
from twostroke.predict.learning import LearningPredictor
from twostroke.request import Request, RequestOutput, SamplingParams
from twostroke.scheduler.scheduler import Scheduler
from twostroke.scheduler.sequence import Sequence, SequenceState


@dataclass
class EventLog:
    """Keeps every event."""

    events: list[Event] = field(default_factory=list)

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list:
        return [e for e in self.events if isinstance(e, kind)]


class Simulation:
    """Real scheduler, cache, meter and engine; only the forward pass is simulated."""

    def __init__(
        self,
        *,
        num_blocks: int = 256,
        cost: LinearCost | None = None,
        is_cache_enabled: bool = True,
        is_stateful: bool = True,
        is_logged: bool = True,
        max_waiting: int = 1024,
        max_wait_s: float = 600.0,
        growth_tokens: int = 256,
        runner: SimulatedRunner | None = None,
        **config: object,
    ) -> None:
        self.clock = FakeClock()
        self.runner = runner or SimulatedRunner(
            num_blocks, cost or LinearCost(), self.clock, is_stateful=is_stateful
        )
        self.cache = KVCacheManager(num_blocks, is_enabled=is_cache_enabled)
        config.setdefault("max_model_len", num_blocks * 16)
        self.config = EngineConfig(**config)
        self.predictor = LearningPredictor.untaught(small_cost())
        self.scheduler = Scheduler(
            self.config,
            self.cache,
            self.predictor,
            clock=self.clock,
            max_waiting=max_waiting,
            max_wait_s=max_wait_s,
            growth_tokens=growth_tokens,
            block_bytes=1000,
        )
        self.meter = PhaseMeter()
        self.log = EventLog()
        self.engine = Engine(
            self.scheduler,
            self.runner,
            meter=self.meter,
            observers=(self.log,) if is_logged else (),
            predictor=self.predictor,
            clock=self.clock,
        )
        self.outputs: dict[str, list[int]] = {}
        self.final: dict[str, RequestOutput] = {}
        self.token_times: dict[str, list[float]] = {}
        self._serial = 0

    def request(
        self,
        prompt: list[int] | tuple[int, ...] | range,
        *,
        id: str | None = None,
        end_token_ids: frozenset[int] = frozenset(),
        priority: int = 0,
        salt: str = "",
        seed: int = 0,
        spans: tuple = (),
        **params: object,
    ) -> Request:
        self._serial += 1
        params.setdefault("temperature", 0.0)
        return Request(
            id=id or f"r{self._serial}",
            prompt_token_ids=tuple(prompt),
            params=SamplingParams(**params),
            seed=seed,
            end_token_ids=end_token_ids,
            arrival_s=self.clock(),
            priority=priority,
            salt=salt,
            spans=spans,
        )

    def add(self, prompt: list[int] | tuple[int, ...] | range, **kwargs: object) -> Sequence:
        request = self.request(prompt, **kwargs)
        self.engine.add(request)
        return self.scheduler.get(request.id)

    def take(self, output: RequestOutput | None) -> None:
        if output is None:
            return
        self.outputs.setdefault(output.request_id, []).extend(output.token_ids)
        if output.token_ids:
            self.token_times.setdefault(output.request_id, []).append(self.clock())
        if output.finish_reason is not None:
            assert output.request_id not in self.final, "two final outputs"
            self.final[output.request_id] = output

    def step(self) -> list[RequestOutput]:
        outputs = self.engine.step()
        for output in outputs:
            self.take(output)
        return outputs

    def abort(self, request_id: str) -> None:
        self.take(self.engine.abort(request_id))

    def run(self, max_steps: int = 100_000) -> None:
        """Step until nothing is left."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                self.check()
                return
            self.step()
        raise AssertionError("work is left: the engine does not drain")

    def answer(self, prompt: list[int] | tuple[int, ...] | range, **kwargs: object) -> list[int]:
        """Run one request to its end and return its tokens."""
        request = self.add(prompt, **kwargs)
        self.run()
        return self.outputs.get(request.id, [])

    def check(self) -> None:
        self.cache.check_integrity()
        for sequence in self.scheduler.sequences():
            assert len(sequence.block_table) * 16 >= sequence.num_computed_tokens
            is_running = sequence.state is SequenceState.RUNNING
            assert (sequence.lease in self.cache._leases) == is_running


def tokens(n: int, *, seed: int = 1) -> list[int]:
    """Return a prompt of n tokens that shares nothing with another seed's."""
    return [(seed * 7919 + i * i * 31 + i) % 30_000 + 1 for i in range(n)]
