"""Compare the golden data with llama.cpp, a second oracle. Usage: check_llamacpp.py GGUF_FOLDER

Needs llama-cpp-python; float32 KV cache, no flash attention. llama.cpp quantises
activations for quantised weights, so its logits are near the golden ones and not equal: the largest
difference is printed as a share of the spread, and nothing is written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from llama_cpp import Llama

HERE = Path(__file__).parent
F32_KV = 0  # GGML_TYPE_F32


def last_logits(path: Path, ids: list[int]) -> np.ndarray:
    """Return llama.cpp's logits at the last position of a prompt."""
    model = Llama(
        str(path),
        n_ctx=len(ids) + 1,
        n_batch=len(ids) + 1,
        n_ubatch=len(ids) + 1,
        logits_all=True,
        type_k=F32_KV,
        type_v=F32_KV,
        flash_attn=False,
        verbose=False,
    )
    model.eval(ids)
    logits = np.array(model.scores[len(ids) - 1], dtype=np.float64)
    model.close()
    return logits


def main() -> None:
    """Print one line a prompt: model, prompt, largest difference over spread, top token equal."""
    folder = Path(sys.argv[1])
    for golden in sorted(HERE.glob("*.json")):
        document = json.loads(golden.read_text(encoding="utf-8"))
        if golden.name == "tiny.json":
            rows = [
                (name, label, prompt["ids"], range(len(prompt["logits"])), prompt["logits"])
                for name, model in document["models"].items()
                for label, prompt in model["prompts"].items()
            ]
        elif "perplexity" in document:
            rows = [
                (golden.stem, label, prompt["ids"], last["top_ids"], last["top_logits"])
                for label, prompt in document["prompts"].items()
                for last in [prompt["last"]]
            ]
        else:
            continue
        for name, label, ids, golden_ids, golden_logits in rows:
            path = folder / f"{name}.gguf"
            if not path.exists():
                continue
            logits = last_logits(path, ids)
            expected = np.asarray(golden_logits)
            error = np.abs(logits[list(golden_ids)] - expected).max() / np.ptp(logits)
            is_top_equal = int(logits.argmax()) == list(golden_ids)[int(expected.argmax())]
            print(f"{name:36} {label:6} {error:.5f} of the spread, top token equal: {is_top_equal}")


if __name__ == "__main__":
    main()
