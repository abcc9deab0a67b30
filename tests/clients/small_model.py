"""A model of random weights with the sample model's tokenizer: agents send long prompts.

Two narrow layers read 30,000 tokens in seconds; answers come from a script (see `agents`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests import tiny_models
from tests.tiny_models import FAMILIES

CONTEXT_LENGTH = 131_072


def write_small(path: Path, tokenizer_of: Path, *, template: str | None = None) -> None:
    """Write the model; its tokenizer and template are those of the GGUF file `tokenizer_of`."""
    from gguf import GGUFReader, GGUFWriter

    fields = GGUFReader(tokenizer_of).fields
    taken = {k: f.contents() for k, f in fields.items() if k.startswith("tokenizer.")}
    if template is not None:
        taken["tokenizer.chat_template"] = template
    spec = replace(FAMILIES["llama"], context_length=CONTEXT_LENGTH, hidden_size=64, num_heads=2)
    spec = replace(spec, num_kv_heads=1, intermediate_size=64, types=("Q8_0",), is_tied=True)
    writer = GGUFWriter(path, spec.family)
    num_vocab = len(taken["tokenizer.ggml.tokens"])
    tiny_models._add_shape(writer, spec, num_vocab=num_vocab)
    tiny_models._add_rope(writer, spec)
    for key, value in taken.items():
        _add(writer, key, value)
    tiny_models._add_tensors(writer, spec, num_vocab=num_vocab)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
