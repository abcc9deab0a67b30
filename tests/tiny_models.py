"""Write tiny random GGUF models of every family, with the metadata llama.cpp's converter writes.

Needs the `gguf` package (a development dependency), imported where it is used. Weights come from
the raw integers of PCG64, so a file's tensors are the same on every platform;
tests/golden/tiny.json holds what transformers makes of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gguf import GGUFWriter

NUM_VOCAB = 320
FULL_TURN = 2.0**53  # of a raw 64-bit integer the 53 high bits are used
QK_GAIN = 3.0  # makes attention peaked, so that masks, soft caps and rope change the logits
EMBEDDING_STD = 0.1  # small: a tied model would otherwise repeat its last token
OUTPUT_STD = 0.5

# Bytes of a quantisation block, offsets of its f16 scale and minimum scale (-1: none), the ratio of
# the two that makes the mean weight zero, and the standard deviation of weights of random bits at
# scale 1 (measured).
RANDOM_BLOCKS: dict[str, tuple[int, int, int, float, float]] = {
    "Q2_K": (84, 80, 82, 1.5, 13.9),
    "Q3_K": (110, 108, -1, 0.0, 43.3),
    "Q4_K": (144, 0, 2, 7.5, 258.0),
    "Q5_K": (176, 0, 2, 15.5, 528.0),
    "Q6_K": (210, 208, -1, 0.0, 1367.0),
    "IQ4_XS": (136, 0, -1, 0.0, 1248.0),
    "IQ4_NL": (18, 0, -1, 0.0, 67.2),
}
RANDOM_BLOCK_WEIGHTS = {"IQ4_NL": 32}  # the others hold 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySpec:
    """Shape, storage and metadata of one tiny model; its matrices take `types` in turn."""

    family: str
    hidden_size: int = 128
    intermediate_size: int = 192
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    context_length: int = 256
    rms_norm_eps: float = 1e-5
    rope_base: float = 10000.0
    rope_scaling: str | None = None  # linear, yarn or llama3
    rope_factor: float = 4.0
    original_context_length: int = 64
    sliding_window: int | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    is_tied: bool = True
    types: tuple[str, ...] = ("F32",)
    embedding_type: str = "F32"
    output_type: str = "F32"
    tokenizer: str = "bpe"  # bpe: byte level with chatml; spm: scores with byte fallback
    seed: int = 1

    @property
    def has_post_norms(self) -> bool:
        """Whether the family normalises after attention and after the MLP too."""
        return self.family.startswith("gemma")

    @property
    def has_qk_norm(self) -> bool:
        """Whether the family normalises each query and key head."""
        return self.family in ("qwen3", "gemma3")


FAMILIES: dict[str, TinySpec] = {
    "llama": TinySpec(family="llama", is_tied=False),
    "qwen2": TinySpec(family="qwen2", rope_base=1e6, rms_norm_eps=1e-6),
    "qwen3": TinySpec(family="qwen3", hidden_size=64, rope_base=1e6, rms_norm_eps=1e-6),
    "gemma2": TinySpec(
        family="gemma2",
        hidden_size=64,
        num_layers=3,
        sliding_window=24,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=1.5,
        rms_norm_eps=1e-6,
    ),
    "gemma3": TinySpec(
        family="gemma3",
        hidden_size=64,
        num_layers=7,
        num_heads=2,
        num_kv_heads=1,
        rope_base=1e6,
        sliding_window=24,
        rms_norm_eps=1e-6,
    ),
}

K_SHAPE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}

TINY_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-16bit": ("llama", {"is_tied": True, "types": ("F16", "BF16"), "seed": 2}),
    "llama-rope-llama3": ("llama", {"rope_scaling": "llama3", "rope_base": 5e5, "seed": 3}),
    "llama-rope-linear": ("llama", {"rope_scaling": "linear", "seed": 4}),
    "llama-rope-yarn": ("llama", {"rope_scaling": "yarn", "seed": 5}),
    "llama-4bit": ("llama", {"types": ("Q4_0", "Q4_1", "IQ4_NL"), "embedding_type": "Q8_0"}),
    "llama-5bit": ("llama", {"types": ("Q5_0", "Q5_1", "Q8_0"), "output_type": "Q8_0"}),
    "llama-k": ("llama", {**K_SHAPE, "types": ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")}),
    "llama-k-head": (
        "llama",
        {**K_SHAPE, "types": ("Q4_K", "Q6_K"), "embedding_type": "Q4_K", "output_type": "Q6_K"},
    ),
    "qwen2": ("qwen2", {}),
    "qwen2-mixed": ("qwen2", {"types": ("Q5_0", "Q8_0"), "is_tied": False, "output_type": "Q8_0"}),
    "qwen3": ("qwen3", {}),
    "qwen3-8bit": ("qwen3", {"types": ("Q8_0",), "embedding_type": "Q8_0"}),
    "gemma2": ("gemma2", {}),
    "gemma2-uncapped": (
        "gemma2",
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "types": ("Q4_0",)},
    ),
    "gemma3": ("gemma3", {}),
    "gemma3-rope-linear": ("gemma3", {"rope_scaling": "linear", "types": ("Q5_0", "Q8_0")}),
    "gemma3-spm": ("gemma3", {"tokenizer": "spm", "embedding_type": "Q8_0", "seed": 2}),
}


def write_tiny(path: Path, family: str, **overrides: Any) -> str:
    """Write a tiny model of `family`; `overrides` are fields of TinySpec.

    Returns:
        SHA-256 of the tensors' names and stored bytes in file order, without the metadata.
    """
    from gguf import GGUFWriter

    spec = replace(FAMILIES[family], **overrides)
    writer = GGUFWriter(path, spec.family)
    _add_shape(writer, spec)
    _add_rope(writer, spec)
    _add_tokenizer(writer, spec)
    digest = _add_tensors(writer, spec)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return digest


def write_named(path: Path, name: str) -> str:
    """Write the model of TINY_MODELS called `name` and return its checksum as `write_tiny` does."""
    family, overrides = TINY_MODELS[name]
    return write_tiny(path, family, **overrides)


def _add_shape(writer: GGUFWriter, spec: TinySpec, *, num_vocab: int = NUM_VOCAB) -> None:
    writer.add_name(f"tiny {spec.family}")
    writer.add_context_length(spec.context_length)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_layer_norm_rms_eps(spec.rms_norm_eps)
    writer.add_quantization_version(2)
    if spec.family == "llama":
        writer.add_vocab_size(num_vocab)
    if spec.family != "qwen2" and (
        spec.family != "llama" or spec.head_dim * spec.num_heads != spec.hidden_size
    ):
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
    if spec.sliding_window is not None:
        writer.add_sliding_window(spec.sliding_window)
    if spec.attn_logit_softcapping is not None:
        writer.add_attn_logit_softcapping(spec.attn_logit_softcapping)
    if spec.final_logit_softcapping is not None:
        writer.add_final_logit_softcapping(spec.final_logit_softcapping)


def _add_rope(writer: GGUFWriter, spec: TinySpec) -> None:
    from gguf import RopeScalingType

    if spec.family == "llama":
        writer.add_rope_dimension_count(spec.head_dim)
    if spec.family != "gemma2":
        writer.add_rope_freq_base(spec.rope_base)
    if spec.rope_scaling in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(spec.rope_scaling))
        writer.add_rope_scaling_factor(spec.rope_factor)
    if spec.rope_scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(spec.original_context_length)


def llama3_rope_factors(spec: TinySpec) -> np.ndarray:
    """Return the values of rope_freqs.weight: the divisor of each rotary frequency.

    Low factor 1, high factor 4 as in Llama 3.1. Shapes: returns [D / 2] float32.
    """
    pair = np.arange(0, spec.head_dim, 2, dtype=np.float64)
    wavelength = 2 * np.pi * spec.rope_base ** (pair / spec.head_dim)
    turns = spec.original_context_length / wavelength
    smooth = np.clip((turns - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    return (1.0 / ((1 - smooth) / spec.rope_factor + smooth)).astype(np.float32)


class _Weights:
    """Random tensors in file order; each matrix has the next type of `spec.types`, in turn."""

    def __init__(self, writer: GGUFWriter, spec: TinySpec) -> None:
        self.writer, self.spec = writer, spec
        self.raw = np.random.PCG64(spec.seed)
        self.digest = hashlib.sha256()
        self.num_matrices = 0

    def uniform(self, *shape: int) -> np.ndarray:
        """Return float64 values in [-1, 1)."""
        integers = self.raw.random_raw(int(np.prod(shape))) >> np.uint64(11)
        return (integers.astype(np.float64) / FULL_TURN * 2 - 1).reshape(shape)

    def vector(self, name: str, size: int, centre: float) -> None:
        """Add a float32 vector of values between `centre` - 0.5 and `centre` + 0.5."""
        self.add(name, (centre + self.uniform(size) / 2).astype(np.float32), "F32")

    def matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """Add a matrix of the next type with standard deviation gain / sqrt(columns)."""
        kind = self.spec.types[self.num_matrices % len(self.spec.types)]
        self.num_matrices += 1
        self.typed(name, rows, columns, gain / np.sqrt(columns), kind)

    def typed(self, name: str, rows: int, columns: int, std: float, kind: str) -> None:
        """Add a matrix stored as `kind`."""
        from gguf import GGMLQuantizationType
        from gguf.quants import quantize

        if kind in RANDOM_BLOCKS:
            self.add(name, self.random_blocks(rows, columns, std, kind), kind)
            return
        values = (self.uniform(rows, columns) * np.sqrt(3.0) * std).astype(np.float32)
        self.add(name, quantize(values, GGMLQuantizationType[kind]), kind)

    def random_blocks(self, rows: int, columns: int, std: float, kind: str) -> np.ndarray:
        """Return blocks of random bits with scales that give the weights the standard deviation."""
        size, scale_at, min_at, ratio, unit_std = RANDOM_BLOCKS[kind]
        weights = RANDOM_BLOCK_WEIGHTS.get(kind, 256)
        if columns % weights:
            raise ValueError(f"{kind} needs rows of a multiple of {weights}, not {columns}")
        count = rows * columns // weights
        words = self.raw.random_raw(count * -(-size // 8)).reshape(count, -1)
        blocks = words.astype("<u8").view(np.uint8)[:, :size].copy()
        scale = np.array([std / unit_std, ratio * std / unit_std], dtype="<f2").view(np.uint8)
        blocks[:, scale_at : scale_at + 2] = scale[:2]
        if min_at >= 0:
            blocks[:, min_at : min_at + 2] = scale[2:]
        return blocks.reshape(rows, -1)

    def add(self, name: str, stored: np.ndarray, kind: str) -> None:
        """Add a tensor of stored bytes."""
        from gguf import GGMLQuantizationType

        self.digest.update(name.encode() + b"\0" + stored.tobytes())
        self.writer.add_tensor(name, stored, raw_dtype=GGMLQuantizationType[kind])


def _add_tensors(writer: GGUFWriter, spec: TinySpec, *, num_vocab: int = NUM_VOCAB) -> str:
    weights = _Weights(writer, spec)
    hidden = spec.hidden_size
    weights.typed("token_embd.weight", num_vocab, hidden, EMBEDDING_STD, spec.embedding_type)
    if spec.rope_scaling == "llama3":
        weights.add("rope_freqs.weight", llama3_rope_factors(spec), "F32")
    for layer in range(spec.num_layers):
        _add_layer(weights, spec, f"blk.{layer}.")
    weights.vector("output_norm.weight", hidden, 1.0)
    if not spec.is_tied:
        weights.typed("output.weight", num_vocab, hidden, OUTPUT_STD, spec.output_type)
    return weights.digest.hexdigest()


def _add_layer(weights: _Weights, spec: TinySpec, prefix: str) -> None:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    weights.vector(prefix + "attn_norm.weight", hidden, 1.0)
    rows_of = {"attn_q": q_size, "attn_k": kv_size, "attn_v": kv_size}
    for name, rows in rows_of.items():
        weights.matrix(f"{prefix}{name}.weight", rows, hidden, 1.0 if name == "attn_v" else QK_GAIN)
        if spec.family == "qwen2":
            weights.vector(f"{prefix}{name}.bias", rows, 0.0)
    if spec.has_qk_norm:
        weights.vector(prefix + "attn_q_norm.weight", spec.head_dim, 1.0)
        weights.vector(prefix + "attn_k_norm.weight", spec.head_dim, 1.0)
    weights.matrix(prefix + "attn_output.weight", hidden, q_size)
    if spec.has_post_norms:
        weights.vector(prefix + "post_attention_norm.weight", hidden, 1.0)
        weights.vector(prefix + "post_ffw_norm.weight", hidden, 1.0)
    weights.vector(prefix + "ffn_norm.weight", hidden, 1.0)
    weights.matrix(prefix + "ffn_gate.weight", inner, hidden)
    weights.matrix(prefix + "ffn_up.weight", inner, hidden)
    weights.matrix(prefix + "ffn_down.weight", hidden, inner)


BPE_MERGES = (  # by rank; each joins two tokens that exist before it
    "Ġ t|Ġ a|h e|i n|r e|o n|Ġt he|e r|Ġ s|a t|Ġ w|Ġ o|e n|Ġ c|i t|i s|a n|o r|e s|Ġ b|e d|Ġ f"
    "|in g|Ġ p|o u|Ġa n|a l|a r|Ġt o|Ġ m|Ġo f|Ġ in|Ġ d|Ġ h|Ġan d|i c|a s|l e|Ġt h|i on|o m|l l"
    "|en t|Ġ n|Ġ l|s t|Ġ re|v e|Ġ e|r o|l y|Ġb e|Ġ g|Ġ T|c t|Ġ S|i d|o t|Ġ I|u t"
)
BPE_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
SPM_PIECES = (
    "▁t he in er ▁a on re ▁the at en or ▁s ed ▁w nd ▁o is ▁c it ou ing ▁b es ▁f an ▁p ▁and ▁to ▁in "
    "▁of ar al ▁m ▁ a b c d e f g h i j k l m n o p q r s t u v w x y z"
)
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # token types of the GGUF specification


def byte_characters() -> list[str]:
    """Return the character that stands for each byte in byte-level BPE (Radford et al. 2019)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def _add_tokenizer(writer: GGUFWriter, spec: TinySpec) -> None:
    if spec.tokenizer == "spm":
        _add_spm_tokenizer(writer)
        return
    merges = BPE_MERGES.split("|")
    tokens = byte_characters() + [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(BPE_CONTROL)
    tokens += BPE_CONTROL
    assert len(tokens) == NUM_VOCAB == len(set(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if spec.family == "llama" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|pad|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)


def _add_spm_tokenizer(writer: GGUFWriter) -> None:
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    pieces = SPM_PIECES.split()
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)] + pieces
    assert len(tokens) == NUM_VOCAB == len(set(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 260 + [-float(rank) for rank in range(len(pieces))])
    writer.add_token_types(
        [CONTROL, CONTROL, CONTROL, UNKNOWN] + [BYTE] * 256 + [NORMAL] * len(pieces)
    )
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
