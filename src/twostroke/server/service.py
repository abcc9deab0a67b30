"""The model behind the routes: load and warm up, ready or not, drain and end. Knows no HTTP."""

from __future__ import annotations

import enum
from collections.abc import Callable

from twostroke.engine.async_engine import AsyncEngine
from twostroke.engine.status import EngineStatus
from twostroke.events import Observer
from twostroke.server.intake import Intake, Loaded
from twostroke.server.metrics import EngineMeters
from twostroke.server.prompts import Prompts
from twostroke.server.refusals import (
    NotReady,
    UnknownModel,
)
from twostroke.server.settings import ServerSettings
from twostroke.text.tokenizer import Tokenizer

_MAX_SEED = 2**53  # what every JSON reader keeps exactly


Loader = Callable[[Observer], Loaded]


class State(enum.Enum):
    """Where the server's life stands."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    ENDED = "ended"


class Service:
    """One served model. Created in any thread; used from one event loop."""

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
        self._intake: Intake | None = None

    # Life

    def load(self) -> None:
        """Load the model, warm up both phases and the text side, start the engine. Blocks.

        Raises:
            TwoStrokeError: it cannot be loaded.
        """
        try:
            loaded = self._loader(self.meters)
            self._loaded = loaded
            self._prompts = Prompts(loaded.model, self.limits, self.max_model_len)
            self._prompts.start()
            loaded.engine.warm_up()
            self._engine = AsyncEngine(loaded.engine)
            self._intake = Intake(loaded, self._engine, self._prompts, self.limits)
            self.meters.watch(self._engine)
            self._engine.start()
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

    @property
    def engine(self) -> AsyncEngine:
        """The engine; only when the model is loaded."""
        assert self._engine is not None
        return self._engine

    @property
    def prompts(self) -> Prompts:
        """The text side, after `check_ready` has let a request in."""
        assert self._prompts is not None
        return self._prompts

    @property
    def intake(self) -> Intake:
        """The way to answers, after `check_ready` has let a request in."""
        assert self._intake is not None
        return self._intake

    def check_ready(self) -> None:
        """Refuse new work unless the model is loaded and the server means to stay.

        Raises:
            NotReady: it is not loaded yet, or about to end.
        """
        if self.state is State.LOADING:
            raise NotReady("the model is loading", remedy="Come back in a few seconds.")
        if self.state is not State.READY:
            raise NotReady("the server is about to end", remedy="Ask another one.")

    @property
    def loaded(self) -> Loaded:
        """The model and what was chosen for it, after `check_ready` has let a request in."""
        assert self._loaded is not None
        return self._loaded

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        tokenizer: Tokenizer = self.loaded.model.tokenizer
        return tokenizer

    @property
    def is_alive(self) -> bool:
        """Whether this process can still serve: false once the engine's thread has died."""
        if self.state is State.ENDED:
            return False
        return self._engine is None or self._engine.is_alive

    def why_not_ready(self) -> str | None:
        """Return why no request should be sent here now, None if one may."""
        if self.state is not State.READY:
            return str(self.state.value)
        if not self.engine.is_alive:
            return "the engine has ended"
        stuck_s = self.engine.seconds_without_progress()
        if stuck_s > self.limits.stuck_s:
            return f"work waits and nothing has moved for {stuck_s:.0f} s"
        return None

    # Facts

    @property
    def name(self) -> str:
        """The model's name in replies."""
        return self.settings.names[0]

    @property
    def max_model_len(self) -> int:
        """The longest prompt plus output of one request, in tokens."""
        value = self.loaded.config.max_model_len
        assert value is not None
        return value

    def check_model(self, name: str | None) -> str:
        """Return the served name that was asked for; None asks for the only one.

        Raises:
            UnknownModel: another name.
        """
        if name is None:
            return self.name
        if name not in self.settings.names and name.removesuffix(":latest") not in (
            self.settings.names
        ):
            raise UnknownModel(
                "this server does not serve that model",
                value=repr(name[:256]),
                limit=", ".join(self.settings.names),
                param="model",
            )
        return name

    def template_reads(self, variable: str) -> bool:
        """Whether the chat template mentions a variable, so that giving it can matter."""
        return self.loaded.model.has_template and variable in self.loaded.model.template.source

    @property
    def status(self) -> EngineStatus:
        """The engine's state after its last step."""
        return self.engine.status

    def predicted_prefill_s(self, num_tokens: int) -> float | None:
        """Return the predicted time of prefilling so many tokens alone, None while unknown."""
        return self.status.predicted_prefill_s(0, num_tokens)
