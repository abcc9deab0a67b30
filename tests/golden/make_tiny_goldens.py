"""Make tiny.json: logits by transformers of every model in tests/tiny_models.py. No arguments."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf_to_hf import load_model
from make_goldens import dump, greedy_record, rounded
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import tiny_models  # noqa: E402

NUM_GREEDY = 16
SHORT_TOKENS, LONG_TOKENS = (
    7,
    70,
)  # the long prompt is longer than every sliding window and crosses blocks
PROMPT_SEED = 7


def prompt_ids(count: int) -> list[int]:
    """Return a fixed prompt of plain tokens."""
    raw = np.random.PCG64(PROMPT_SEED).random_raw(count)
    return [int(value % 256) for value in raw]


def check_llama3_factors(model: transformers.PreTrainedModel, spec: tiny_models.TinySpec) -> None:
    """Check the file's rope_freqs against transformers' own llama3 scaling."""
    model.config.rope_parameters = {
        "rope_type": "llama3",
        "rope_theta": spec.rope_base,
        "factor": spec.rope_factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": spec.original_context_length,
    }
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, expected, rtol=1e-5, atol=0)


@torch.inference_mode()
def golden_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the golden data of one tiny model."""
    path = folder / f"{name}.gguf"
    digest = tiny_models.write_named(path, name)
    model = load_model(path)
    record: dict[str, Any] = {"weights_sha256": digest, "prompts": {}}
    for label, count in (("short", SHORT_TOKENS), ("long", LONG_TOKENS)):
        ids = prompt_ids(count)
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        record["prompts"][label] = {
            "ids": ids,
            "logits": rounded(logits),
            "greedy": greedy_record(model, ids, NUM_GREEDY),
        }
        print(name, label, float(logits.std()), record["prompts"][label]["greedy"]["ids"])
    family, overrides = tiny_models.TINY_MODELS[name]
    if overrides.get("rope_scaling") == "llama3":
        spec = tiny_models.replace(tiny_models.FAMILIES[family], **overrides)
        check_llama3_factors(model, spec)
    return record


def main() -> None:
    """Write tiny.json."""
    with tempfile.TemporaryDirectory() as folder:
        models = {name: golden_of(name, Path(folder)) for name in tiny_models.TINY_MODELS}
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__}
    dump({"made_with": made_with, "models": models}, HERE / "tiny.json")


if __name__ == "__main__":
    main()
