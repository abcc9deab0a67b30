"""Memory that a model takes: weights, KV, recurrent state and compute buffers, by engine's rules.

Our engine's memory is exact; that of other engines is a range whose causes are named. Knows no
machine: a device's memory is an argument.
Source: formulas and observed allocations collected from public threads; each rule names its engine.
"""

from __future__ import annotations

import enum

from twostroke.dataclass import dataclass
from twostroke.predict.kv import KvFormat, layer_token_bytes
from twostroke.predict.shape import LayerShape, ModelShape
from twostroke.step import BLOCK_SIZE

_PAD = 256  # llama.cpp pads caches to this many tokens
_MIB = 1 << 20
# CUDA context and libraries per device: 0.3 to 0.6 GiB in public reports.
GPU_CONTEXT_BYTES = (300 * _MIB, 614 * _MIB)


class Rules(enum.Enum):
    """Whose allocation is computed.

    ANY counts the tokens themselves; sliding layers keep the window and one batch.
    """

    ANY = "any"
    TWOSTROKE = "twostroke"
    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class Bytes:
    """An amount of memory as an interval, with the causes of its width."""

    low: float
    high: float
    causes: tuple[str, ...] = ()


def cells(
    layer: LayerShape,
    context: int,
    rules: Rules,
    *,
    batch_tokens: int = 512,
    keep_all: bool = False,
) -> int:
    """Return the tokens that a layer's cache holds for one sequence of `context` tokens.

    batch_tokens: most tokens a step computes (llama.cpp's ubatch). keep_all: a sliding layer keeps
    everything (llama.cpp's --swa-full). Our cache keeps everything in every layer.
    """
    slides = layer.window > 0 and not keep_all and rules is not Rules.TWOSTROKE
    if rules is Rules.TWOSTROKE:
        return _up(context, BLOCK_SIZE)
    if rules is Rules.VLLM:
        return _up(min(context, layer.window) if slides else context, BLOCK_SIZE)
    wanted = min(context, layer.window + batch_tokens) if slides else context
    if rules is Rules.LLAMA_CPP:
        return _up(wanted, _PAD)
    return min(context, _up(wanted, _PAD)) if slides else context


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def kv_bytes(
    shape: ModelShape,
    kv: KvFormat,
    context: int,
    *,
    sequences: int = 1,
    rules: Rules = Rules.ANY,
    batch_tokens: int = 512,
    keep_all: bool = False,
) -> float | None:
    """Return bytes of KV for so many sequences of `context` tokens; None: shape unknown.

    Raises:
        ShapeError: a row that the KV type's blocks do not divide.
    """
    if shape.layers is None:
        return None
    total = 0.0
    for layer, count in shape.grouped_layers():
        if layer.keeps_kv:
            held = cells(layer, context, rules, batch_tokens=batch_tokens, keep_all=keep_all)
            total += count * held * layer_token_bytes(layer, kv)
    return total * sequences


def compute_bytes(
    shape: ModelShape,
    context: int,
    *,
    batch_tokens: int = 512,
    flash_attention: bool = True,
    on_gpu: bool = False,
) -> Bytes | None:
    """Return the buffers between operations of an engine that is not ours, per device.

    The lower bound is the larger of logits and feed-forward rows; without flash attention the
    scores of one layer come on top (4b(1 + 2e + ctx + ctx heads), as Ollama's graph of qwen2).
    """
    width, inner, vocab = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    if shape.layers is None or width is None or vocab is None:
        return None
    heads = max((layer.heads for layer in shape.layers), default=0)
    b = 4.0 * batch_tokens
    low = b * max(width + vocab, 2 * (inner or 0) + width)
    causes = [f"logits of {batch_tokens} tokens, or their feed-forward rows"]
    if not flash_attention:
        low = max(low, b * (1 + 2 * width + context + context * heads))
        causes.append("attention scores: no flash attention")
    high = low
    if on_gpu:
        low, high = low + GPU_CONTEXT_BYTES[0], high + GPU_CONTEXT_BYTES[1]
        causes.append("GPU context and libraries: 0.3 to 0.6 GiB")
    return Bytes(low, high, tuple(causes))


def own_compute_bytes(
    shape: ModelShape, *, step_tokens: int, arena_bytes: int | None
) -> Bytes | None:
    """Return the buffers of our engine: its arena, exact where a dry run told it.

    Otherwise the float32 rows that live at once in a layer, and 64 rows of logits.
    """
    if arena_bytes is not None:
        return Bytes(arena_bytes, arena_bytes)
    width, inner, vocab = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    if shape.layers is None or width is None or inner is None or vocab is None:
        return None
    layer = next((one for one in shape.layers if one.has_attention), LayerShape())
    qkv = layer.heads * layer.key_dim + layer.kv_heads * (layer.key_dim + layer.value_dim)
    rows = 4.0 * step_tokens * (width + max(2 * inner, qkv + width))
    logits = 4.0 * min(64, step_tokens) * vocab
    return Bytes(
        max(rows, logits),
        1.5 * (rows + logits),
        ("rows of one layer; the exact arena needs the native library and the local file",),
    )


# How much a device offers


@dataclass(frozen=True, slots=True)
class Placement:
    """Whole layers on devices, in order. is_placed: every layer found a place."""

    layers_per_device: tuple[int, ...]
    is_placed: bool


def place_layers(
    layer_bytes: tuple[float, ...], device_bytes: tuple[float, ...], *, last_extra: float = 0.0
) -> Placement:
    """Fill devices with whole layers, one after another; last_extra goes where the last layer is.

    Filling each device as far as it goes places most layers: if this fails, no split in order fits.
    """
    counts = [0] * len(device_bytes)
    sizes = (*layer_bytes, last_extra) if last_extra else layer_bytes
    device, left = 0, device_bytes[0] if device_bytes else 0.0
    for size in sizes:
        while size > left:
            device += 1
            if device >= len(device_bytes):
                return Placement(tuple(counts), False)
            left = device_bytes[device]
        left -= size
        counts[device] += 1
    return Placement(tuple(counts), bool(device_bytes))
