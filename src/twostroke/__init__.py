"""twostroke: an LLM generation engine whose two phases, prefill and decode, are first-class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "EngineConfig", "RequestRecord", "SamplingParams", "TwoStrokeError"]

if TYPE_CHECKING:
    from twostroke.config import EngineConfig
    from twostroke.errors import TwoStrokeError
    from twostroke.llm import LLM
    from twostroke.record import RequestRecord
    from twostroke.request import SamplingParams

_HOMES = {
    "LLM": "twostroke.llm",
    "EngineConfig": "twostroke.config",
    "RequestRecord": "twostroke.record",
    "SamplingParams": "twostroke.request",
    "TwoStrokeError": "twostroke.errors",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that `doctor` starts without an engine."""
    if name not in _HOMES:
        raise AttributeError(f"module 'twostroke' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
