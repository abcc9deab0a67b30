"""twostroke: an LLM generation engine whose two phases, prefill and decode, are first-class."""

__version__ = "0.1.0"
