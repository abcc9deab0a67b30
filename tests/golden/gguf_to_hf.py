"""Build a float32 Hugging Face model from a GGUF file, tensor by tensor.

Names and keys are mapped here, without transformers' own GGUF loader. So the golden data rests on
the gguf package for the file and on transformers for the mathematics, and on no code that we use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize

MODEL_CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
}
LAYER_TENSORS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
}
PRE_NORM_ONLY = {"ffn_norm": "post_attention_layernorm"}
PRE_AND_POST_NORM = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA3_LOCAL_ROPE_BASE = 10000.0
GEMMA3_PATTERN = 6


class Metadata:
    """The metadata of a GGUF file; a key that begins with a dot is the architecture's."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields
        self.family: str = self.get("general.architecture")

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, `.name` meaning `<architecture>.name`."""
        field = self._fields.get(self.family + key if key.startswith(".") else key)
        return default if field is None else field.contents()


def rope_parameters(meta: Metadata) -> dict[str, Any]:
    """Return transformers' rope parameters; llama3's come from a tensor, see `apply_rope_freqs`."""
    rope: dict[str, Any] = {
        "rope_type": meta.get(".rope.scaling.type", "default"),
        "rope_theta": meta.get(".rope.freq_base", 10000.0),
    }
    if rope["rope_type"] == "none":
        rope["rope_type"] = "default"
    if rope["rope_type"] != "default":
        rope["factor"] = meta.get(".rope.scaling.factor")
    if rope["rope_type"] == "yarn":
        rope["original_max_position_embeddings"] = meta.get(".rope.scaling.original_context_length")
    if meta.family != "gemma3":
        return rope
    local_base = meta.get(".rope.freq_base_swa", GEMMA3_LOCAL_ROPE_BASE)
    local = {"rope_type": "default", "rope_theta": local_base}
    return {"full_attention": rope, "sliding_attention": local}


def model_config(meta: Metadata, num_vocab: int, *, is_tied: bool) -> transformers.PretrainedConfig:
    """Translate GGUF metadata to the Hugging Face config of its family."""
    num_heads, hidden = meta.get(".attention.head_count"), meta.get(".embedding_length")
    head_dim = meta.get(".attention.key_length", hidden // num_heads)
    num_layers = meta.get(".block_count")
    values: dict[str, Any] = {
        "vocab_size": num_vocab,
        "hidden_size": hidden,
        "intermediate_size": meta.get(".feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": meta.get(".attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": meta.get(".context_length"),
        "rms_norm_eps": meta.get(".attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope_parameters(meta),
        "tie_word_embeddings": is_tied,
    }
    if meta.family.startswith("gemma"):
        pattern = GEMMA3_PATTERN if meta.family == "gemma3" else 2
        pattern = meta.get(".attention.sliding_window_pattern", pattern)
        values |= {
            "query_pre_attn_scalar": head_dim,
            "sliding_window": meta.get(".attention.sliding_window"),
            "layer_types": [
                "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention"
                for layer in range(num_layers)
            ],
            "attn_logit_softcapping": meta.get(".attn_logit_softcapping"),
            "final_logit_softcapping": meta.get(".final_logit_softcapping"),
        }
    return MODEL_CLASSES[meta.family][0](**values)


def undo_rope_permutation(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Bring llama's q or k rows from interleaved rotary pairs back to Hugging Face's two halves.

    Shapes:
        weight, returned  [heads * D, E]
    """
    pairs = weight.reshape(num_heads, weight.shape[0] // num_heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def hf_name(name: str, family: str) -> str | None:
    """Return the Hugging Face parameter a GGUF tensor stands for, None for the rope frequencies."""
    whole = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
        "rope_freqs.weight": None,
    }
    if name in whole:
        return whole[name]
    _, layer, tensor, kind = name.split(".")
    post = PRE_AND_POST_NORM if family.startswith("gemma") else PRE_NORM_ONLY
    return f"model.layers.{layer}.{(LAYER_TENSORS | post)[tensor]}.{kind}"


def state_dict(reader: GGUFReader, meta: Metadata) -> dict[str, torch.Tensor]:
    """Dequantise every tensor to float32 under its Hugging Face name."""
    heads = {
        "attn_q": meta.get(".attention.head_count"),
        "attn_k": meta.get(".attention.head_count_kv"),
    }
    state: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name, meta.family)
        if name is None:
            continue
        value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        value = value.reshape([int(n) for n in reversed(tensor.shape)])
        kind = tensor.name.split(".")[-2]
        if meta.family == "llama" and kind in heads:
            value = undo_rope_permutation(value, heads[kind])
        if meta.family.startswith("gemma") and name.endswith("norm.weight"):
            value = value - np.float32(1)  # the file stores 1 + w, transformers adds the 1 itself
        state[name] = torch.from_numpy(np.ascontiguousarray(value))
    return state


def apply_rope_freqs(model: torch.nn.Module, reader: GGUFReader) -> None:
    """Divide the rotary frequencies by the file's rope_freqs, if it has them (llama3 scaling)."""
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            factors = torch.from_numpy(np.array(tensor.data, dtype=np.float32))
            model.model.rotary_emb.inv_freq.div_(factors)


def load_model(path: Path) -> transformers.PreTrainedModel:
    """Return the model of a GGUF file in float32 with eager attention, in evaluation mode."""
    reader = GGUFReader(path)
    meta = Metadata(reader)
    state = state_dict(reader, meta)
    is_tied = "lm_head.weight" not in state
    num_vocab = state["model.embed_tokens.weight"].shape[0]
    config = model_config(meta, num_vocab, is_tied=is_tied)
    config._attn_implementation = "eager"
    with torch.device("cpu"):
        model = MODEL_CLASSES[meta.family][1](config).to(torch.float32).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - ({"lm_head.weight"} if is_tied else set()):
        raise ValueError(f"{path}: missing {missing}, unexpected {unexpected}")
    if is_tied:
        model.tie_weights()
    apply_rope_freqs(model, reader)
    return model
