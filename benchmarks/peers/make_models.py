"""Write model files to measure: the sample model in other formats, and an 8B shape of random bits.

    make_models.py requantise MODEL.gguf q4_0 OUT.gguf      (f16, q8_0, q4_0 or q4_1)
    make_models.py random-8b MODEL.gguf OUT.gguf            (about 4.5 GB)

Needs the `gguf` package. A requantised file starts from the dequantised weights of MODEL. At 4 bits
the embedding, which is the output matrix too, stays Q8_0, as llama-quantize does. The 8B file has
the tokenizer of MODEL, filled up with unused tokens; its answers are noise, its speed is that of
Q4_0.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

FORMATS = {"f16": 1, "q8_0": 7, "q4_0": 2, "q4_1": 3}  # to general.file_type
WRITTEN_BY_WRITER = {"general.architecture", "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
# Llama 3.1 8B: the shape of the decode figure in RESULTS.md.
SHAPE_8B = {
    "block_count": 32,
    "context_length": 8192,
    "embedding_length": 4096,
    "feed_forward_length": 14336,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "vocab_size": 128256,
    "rope.dimension_count": 128,
}
Q4_0_BYTES, Q4_0_WEIGHTS = 18, 32
RANDOM_SCALE = 0.003  # times nibbles of -8..7: weights of standard deviation about 1 / sqrt(4096)
UNUSED_TOKEN = 5  # token type of the GGUF specification


def copy_metadata(reader: GGUFReader, writer: GGUFWriter, changes: dict[str, Any]) -> None:
    """Copy every key except those that the writer sets itself, with the values in `changes`."""
    for key, field in reader.fields.items():
        if key in WRITTEN_BY_WRITER:
            continue
        element = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        value = changes.get(key, field.contents())
        writer.add_key_value(key, value, field.types[0], sub_type=element)


def finish(writer: GGUFWriter) -> None:
    """Write header, metadata and the tensors that were added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


def requantise(source: Path, name: str, target: Path) -> None:
    """Write `source` with its matrices in another format."""
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture)
    copy_metadata(reader, writer, {"general.file_type": FORMATS[name]})
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = GGMLQuantizationType[name.upper()] if values.ndim == 2 else GGMLQuantizationType.F32
        if name.startswith("q4") and tensor.name in ("token_embd.weight", "output.weight"):
            kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    finish(writer)


def random_q4_0(source: np.random.PCG64, rows: int, columns: int) -> np.ndarray:
    """Return the blocks of a random Q4_0 matrix.

    Shapes: returns [rows, columns / 32 * 18] uint8
    """
    blocks = rows * columns // Q4_0_WEIGHTS
    words = source.random_raw(-(-blocks * 16 // 8)).view(np.uint8).reshape(blocks, 16)
    scale = np.array([RANDOM_SCALE], dtype="<f2").view(np.uint8)
    stored = np.empty((blocks, Q4_0_BYTES), dtype=np.uint8)
    stored[:, :2], stored[:, 2:] = scale, words
    return stored.reshape(rows, -1)


def tensors_8b() -> list[tuple[str, int, int]]:
    """Return name, rows and columns of every tensor; a vector has one row."""
    hidden, inner = SHAPE_8B["embedding_length"], SHAPE_8B["feed_forward_length"]
    kv_size = SHAPE_8B["attention.head_count_kv"] * SHAPE_8B["rope.dimension_count"]
    layer = [
        ("attn_norm", 1, hidden),
        ("attn_q", hidden, hidden),
        ("attn_k", kv_size, hidden),
        ("attn_v", kv_size, hidden),
        ("attn_output", hidden, hidden),
        ("ffn_norm", 1, hidden),
        ("ffn_gate", inner, hidden),
        ("ffn_up", inner, hidden),
        ("ffn_down", hidden, inner),
    ]
    names = [("token_embd.weight", SHAPE_8B["vocab_size"], hidden)]
    for number in range(SHAPE_8B["block_count"]):
        names += [(f"blk.{number}.{name}.weight", rows, columns) for name, rows, columns in layer]
    output = ("output.weight", SHAPE_8B["vocab_size"], hidden)
    return [*names, ("output_norm.weight", 1, hidden), output]


def filled_tokenizer(reader: GGUFReader) -> dict[str, Any]:
    """Return the tokenizer's token list and types, filled up to the 8B vocabulary."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    missing = SHAPE_8B["vocab_size"] - len(tokens)
    return {
        "tokenizer.ggml.tokens": tokens + [f"[unused{i}]" for i in range(missing)],
        "tokenizer.ggml.token_type": types + [UNUSED_TOKEN] * missing,
    }


def random_8b(source: Path, target: Path) -> None:
    """Write the 8B shape, one tensor in memory at a time."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, "llama")
    shape = {f"llama.{key}": value for key, value in SHAPE_8B.items()}
    changes = shape | filled_tokenizer(reader) | {"general.file_type": FORMATS["q4_0"]}
    copy_metadata(reader, writer, changes | {"general.name": "random 8B shape"})
    tensors = tensors_8b()
    q4_0 = GGMLQuantizationType.Q4_0
    for name, rows, columns in tensors:
        if rows == 1:
            writer.add_tensor_info(name, (columns,), np.dtype(np.float32), columns * 4)
        else:
            stored = (rows, columns // Q4_0_WEIGHTS * Q4_0_BYTES)
            writer.add_tensor_info(
                name, stored, np.dtype(np.uint8), stored[0] * stored[1], raw_dtype=q4_0
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    bits = np.random.PCG64(1)
    for _, rows, columns in tensors:
        is_vector = rows == 1
        writer.write_tensor_data(
            np.ones(columns, np.float32) if is_vector else random_q4_0(bits, rows, columns)
        )
    writer.close()


def main() -> int:
    """Run the command line."""
    match sys.argv[1:]:
        case ["requantise", source, name, target] if name in FORMATS:
            requantise(Path(source), name, Path(target))
        case ["random-8b", source, target]:
            random_8b(Path(source), Path(target))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
