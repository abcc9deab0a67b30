"""A model file, opened: its shape, its weights in place, its tokenizer and chat template.

The only place that turns a model's name into an opened model; knows no backend and no engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.errors import CapacityError, TemplateError
from twostroke.formats.gguf import GGUFFile, open_gguf
from twostroke.formats.quant import dequantize
from twostroke.host import free_memory_bytes
from twostroke.model.config import ModelConfig
from twostroke.model.gguf_config import config_from_gguf
from twostroke.model.hub import resolve
from twostroke.model.local_models import cache_folder
from twostroke.model.model_files import Progress
from twostroke.model.weights import ModelWeights, load_weights, vocab_size_of
from twostroke.request import MessageSpan
from twostroke.text.chat import ChatTemplate, Rendered, encode_chat
from twostroke.text.segments import Segment
from twostroke.text.tokenizer import Tokenizer

_GIB = 1 << 30


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model file, opened: its shape, its weights in place, its tokenizer."""

    name: str
    file: GGUFFile
    config: ModelConfig
    weights: ModelWeights
    tokenizer: Tokenizer
    load_s: float

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Ids that end an answer: those of the metadata and the well-known ones."""
        return self.tokenizer.end_ids

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's own chat template.

        Raises:
            TemplateError: the file has none.
        """
        return ChatTemplate.from_gguf(self.file.metadata, self.tokenizer)

    @property
    def has_template(self) -> bool:
        """Whether the model takes chat messages."""
        try:
            return bool(self.template)
        except TemplateError:
            return False

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> Rendered:
        """Render messages up to the point where the model speaks.

        Raises:
            TemplateError: there is no template, or it refused.
            RequestError: messages of the wrong shape.
        """
        return self.template.render(messages, **variables)

    def encode_rendered(
        self, rendered: Rendered
    ) -> tuple[tuple[int, ...], tuple[MessageSpan, ...]]:
        """Return a rendered prompt's ids, and the span of them that each message became."""
        ids, spans = encode_chat(self.tokenizer, rendered)
        return tuple(ids), spans

    def encode_after(self, rendered: Rendered, position: int) -> tuple[int, ...]:
        """Return the ids of the part of a rendered prompt from a character position on."""
        rest, at = [], 0
        for segment in rendered.segments:
            end = at + len(segment.text)
            if end > position:
                text = segment.text[max(position - at, 0) :]
                rest.append(Segment(text, segment.parse_special))
            at = end
        return tuple(self.tokenizer.encode_segments(rest))


def load_model(name: str, *, progress: Progress | None = None) -> LoadedModel:
    """Find a model by name, fetching it if needed, and open it.

    Raises:
        ModelError: the model is not found, broken or not supported.
        CapacityError: its weights are larger than the free memory.
    """
    start = time.monotonic()
    files = resolve(name, progress=progress)
    file = open_gguf(files.path)
    try:
        config = config_from_gguf(
            file.metadata, vocab_size=vocab_size_of(file), freq_factors=_freq_factors(file)
        )
        weights = load_weights(file, config)
        _check_memory(files.path, weights)
        tokenizer = Tokenizer.from_gguf(file.metadata, cache_folder() / "tokenizers")
    except BaseException:
        file.close()
        raise
    for warning in tokenizer.warnings:
        import logging

        logging.getLogger(__name__).warning("%s: %s", files.path.name, warning)
    return LoadedModel(name, file, config, weights, tokenizer, time.monotonic() - start)


def _freq_factors(file: GGUFFile) -> tuple[float, ...]:
    info = file.tensors.get("rope_freqs.weight")
    if info is None:
        return ()
    values = dequantize(file.data(info.name), info.type, info.shape)
    return tuple(float(v) for v in values.reshape(-1))


def _check_memory(path: Path, weights: ModelWeights) -> None:
    free, wanted = free_memory_bytes(), sum(w.nbytes for w in weights.all())
    if free is not None and wanted > free:
        raise CapacityError(
            f"{path.name} does not fit into memory",
            value=f"{wanted / _GIB:.2f} GiB of weights",
            limit=f"{free / _GIB:.2f} GiB free",
            remedy="Use a smaller model, or one with fewer bits a weight.",
        )
