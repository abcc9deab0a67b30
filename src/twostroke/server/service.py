"""The model behind the routes: loaded and warmed up, admitting answers, drained and ended.

Knows no HTTP.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import replace

from twostroke.config import EngineConfig
from twostroke.dataclass import dataclass
from twostroke.engine.async_engine import AsyncEngine
from twostroke.engine.engine import Engine
from twostroke.errors import RequestError
from twostroke.events import Observer
from twostroke.model.loaded import LoadedModel
from twostroke.request import SamplingParams
from twostroke.server.errors import NotReady, TooManyRequests, UnknownModel
from twostroke.server.operations.metrics import EngineMeters
from twostroke.server.prompts import Prompts
from twostroke.server.settings import ServerLimits, ServerSettings
from twostroke.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a loader: a model, its engine, the resolved settings, a line about them."""

    model: LoadedModel
    engine: Engine
    config: EngineConfig
    summary: str = ""


Loader = Callable[[Observer], Loaded]


class State(enum.Enum):
    """The stages of the server's lifecycle."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    ENDED = "ended"


class Service:
    """One served model. Created in any thread; used from one event loop.

    The properties are for routes that `check_ready` has let in.
    """

    def __init__(self, settings: ServerSettings, loader: Loader) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.state = State.LOADING
        self.fault: BaseException | None = None
        self.meters = EngineMeters(settings.names[0])
        self._loader = loader
        self._loaded: Loaded | None = None
        self._engine: AsyncEngine | None = None
        self._prompts: Prompts | None = None
        self._admission: Admission | None = None

    # Lifecycle

    def load(self) -> None:
        """Load the model, warm up both phases and the text side, start the engine. Blocks.

        Raises:
            TwoStrokeError: the model cannot be loaded.
        """
        try:
            loaded = self._loader(self.meters)
            self._loaded = loaded
            self._prompts = Prompts(loaded.model, self.limits, self.max_model_len)
            self._prompts.start()
            loaded.engine.warm_up()
            engine = AsyncEngine(loaded.engine)
            self._admission = Admission(engine, loaded.config, self.limits)
            self.meters.watch(engine)
            engine.start()
            self._engine = engine
        except BaseException as fault:
            self.fault, self.state = fault, State.ENDED
            raise
        if self.state is State.LOADING:
            self.state = State.READY

    def begin_drain(self) -> None:
        """Take no new requests from now on; those in flight go on."""
        if self.state is not State.ENDED:
            self.state = State.DRAINING

    def close(self) -> None:
        """End engine and workers; answers in flight get EngineStopped."""
        self.state = State.ENDED
        if self._engine is not None:
            self._engine.shutdown()
        if self._prompts is not None:
            self._prompts.close()

    def check_ready(self) -> None:
        """Refuse new work unless the model is loaded and the server is not ending.

        Raises:
            NotReady: the model is loading, or the server is about to end.
        """
        if self.state is State.LOADING:
            raise NotReady("the model is loading", remedy="Come back in a few seconds.")
        if self.state is not State.READY:
            raise NotReady("the server is about to end", remedy="Ask another one.")

    # Parts

    @property
    def is_loaded(self) -> bool:
        """Whether the engine's thread was started; the other parts are there from then on."""
        return self._engine is not None

    @property
    def loaded(self) -> Loaded:
        """The model and the settings chosen for it."""
        assert self._loaded is not None
        return self._loaded

    @property
    def engine(self) -> AsyncEngine:
        """The engine."""
        assert self._engine is not None
        return self._engine

    @property
    def prompts(self) -> Prompts:
        """The text side of the model."""
        assert self._prompts is not None
        return self._prompts

    @property
    def admission(self) -> Admission:
        """The limits of new answers."""
        assert self._admission is not None
        return self._admission

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.loaded.model.tokenizer

    @property
    def max_model_len(self) -> int:
        """The longest prompt plus output of one request, in tokens."""
        value = self.loaded.config.max_model_len
        assert value is not None
        return value

    def check_model(self, name: str | None) -> str:
        """Return the served name that was asked for; None asks for the only model.

        Raises:
            UnknownModel: this server does not serve that name.
        """
        names = self.settings.names
        if name is None:
            return names[0]
        if not {name, name.removesuffix(":latest")} & set(names):
            raise UnknownModel(
                "this server does not serve that model",
                value=repr(name[:256]),
                limit=", ".join(names),
                param="model",
            )
        return name


@dataclass(frozen=True, slots=True)
class Bounded:
    """Parameters within the server's limits. bound: the limit that set max_tokens."""

    params: SamplingParams
    bound: str | None


class Admission:
    """Admits answers to one engine. Used from one event loop.

    num_open: answers admitted and not ended.
    """

    def __init__(self, engine: AsyncEngine, config: EngineConfig, limits: ServerLimits) -> None:
        self.num_open = 0
        self._engine = engine
        self._max_num_seqs = config.max_num_seqs
        self._limits = limits

    def bounded(self, params: SamplingParams) -> Bounded:
        """Return the parameters with max_tokens within the server's own caps.

        Raises:
            RequestError: more stops or logprobs than the limits give.
        """
        limits = self._limits
        num_stops = len(params.stop) + len(params.stop_token_ids)
        _check_limit("stop", num_stops, "max_stops", limits.max_stops)
        _check_limit("logprobs", params.logprobs or 0, "max_logprobs", limits.max_logprobs)
        max_tokens, bound, cap = params.max_tokens, "max_tokens", limits.max_output_tokens
        if max_tokens is None:
            max_tokens, bound = limits.default_max_tokens, "server_default"
        if cap is not None and (max_tokens is None or max_tokens > cap):
            max_tokens, bound = cap, "server_cap"
        if max_tokens is None:
            return Bounded(params, None)
        return Bounded(replace(params, max_tokens=max_tokens), bound)

    def reserve(self, num: int) -> None:
        """Admit so many answers of one request.

        Raises:
            RequestError: more than one request may have.
            TooManyRequests: too many run or wait; retry_after_s is the predicted wait.
        """
        limits = self._limits
        if num > limits.max_choices:
            raise RequestError(
                "too many answers in one request",
                value=num,
                limit=f"max_choices {limits.max_choices}",
                param="n",
            )
        if self.num_open and self.num_open + num > self._max_num_seqs + limits.max_waiting:
            wait_s = self._engine.status.predicted_wait_s
            raise TooManyRequests(
                "too many answers run or wait",
                value=self.num_open,
                limit=f"max_num_seqs {self._max_num_seqs} + max_waiting {limits.max_waiting}",
                remedy="Come back later.",
                retry_after_s=1.0 if wait_s is None else min(max(wait_s, 1.0), 600.0),
            )
        self.num_open += num

    def release(self, num: int) -> None:
        """Note that so many admitted answers have ended."""
        self.num_open -= num


def _check_limit(param: str, value: int, name: str, limit: int) -> None:
    if value > limit:
        raise RequestError(f"too many {param}", value=value, limit=f"{name} {limit}", param=param)
