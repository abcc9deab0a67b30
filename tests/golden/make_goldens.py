"""Make <model>.json, the golden data of one real model. Usage: make_goldens.py GGUF PROMPTS

PROMPTS is what make_prompts.py wrote: the token ids of four prompts and of text.txt. All arithmetic
is transformers in float32 with eager attention on dequantised weights.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf_to_hf import load_model

NUM_TOP = 64
NUM_SAMPLED = 512
NUM_GREEDY = 64
WINDOW = 1024
INNER_POSITIONS = (0, 1, 15, 16, 100)  # around the block edge; the last is inside the long prompt
SAMPLE_SEED = 20260101
SIGNIFICANT = 8  # decimal digits that carry a float32's meaning through JSON


def rounded(values: torch.Tensor) -> list[float]:
    """Return float32 values as short decimals."""
    return [float(f"{value:.{SIGNIFICANT}g}") for value in values.tolist()]


def sampled_ids(num_vocab: int) -> list[int]:
    """Return the fixed sample of vocabulary ids, the same on every platform."""
    raw = np.random.PCG64(SAMPLE_SEED).random_raw(4 * NUM_SAMPLED)
    distinct = dict.fromkeys(int(value % num_vocab) for value in raw)
    return sorted(list(distinct)[: min(NUM_SAMPLED, num_vocab)])


def logits_record(logits: torch.Tensor) -> dict[str, Any]:
    """Describe one position's logits: spread, the top ids, and the fixed sample.

    Shapes:
        logits  [V]
    """
    top = torch.topk(logits, min(NUM_TOP, logits.numel()))
    ids = sampled_ids(logits.numel())
    return {
        "spread": float(logits.max() - logits.min()),
        "std": float(logits.std()),
        "top_ids": top.indices.tolist(),
        "top_logits": rounded(top.values),
        "sample_ids": ids,
        "sample_logits": rounded(logits[ids]),
    }


def greedy_ids(model: transformers.PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """Continue `prompt` by `count` tokens of the highest logit, end tokens ignored."""
    cache, ids, ahead = None, [], torch.tensor([prompt])
    for _ in range(count):
        out = model(ahead, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        ids.append(int(out.logits[0, -1].argmax()))
        ahead = torch.tensor([[ids[-1]]])
    return ids


def greedy_record(
    model: transformers.PreTrainedModel, prompt: list[int], count: int
) -> dict[str, Any]:
    """Return the greedy continuation with the margin and the runner-up of every step.

    Margins come from one pass without a cache over prompt and answer, which also checks the ids.
    """
    ids = greedy_ids(model, prompt, count)
    logits = model(torch.tensor([prompt + ids[:-1]]), use_cache=False, logits_to_keep=count).logits[
        0
    ]
    top = torch.topk(logits, 2)
    if top.indices[:, 0].tolist() != ids:
        raise ValueError("greedy tokens with and without a cache differ; the margin is float noise")
    return {
        "ids": ids,
        "margins": rounded(top.values[:, 0] - top.values[:, 1]),
        "runner_up_ids": top.indices[:, 1].tolist(),
        "spreads": rounded(logits.amax(-1) - logits.amin(-1)),
    }


def window_nll(model: transformers.PreTrainedModel, ids: list[int]) -> float:
    """Return the mean negative log-likelihood of all but the first token of one window, in nats."""
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1].double()
    picked = logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return float((logits.logsumexp(-1) - picked).mean())


def perplexity_record(model: transformers.PreTrainedModel, ids: list[int]) -> dict[str, Any]:
    """Score whole windows of the text; no BOS is added, a partial last window is dropped."""
    starts = range(0, len(ids) - WINDOW + 1, WINDOW)
    windows = [window_nll(model, ids[start : start + WINDOW]) for start in starts]
    return {
        "num_tokens": len(ids),
        "ids_sha256": ids_sha256(ids),
        "window": WINDOW,
        "window_nll": windows,
        "nll": sum(windows) / len(windows),
        "first_512_nll": window_nll(model, ids[:512]),
        "ids": ids,
    }


def ids_sha256(ids: list[int]) -> str:
    """Return the checksum of ids as little-endian int32."""
    return hashlib.sha256(np.asarray(ids, dtype="<i4").tobytes()).hexdigest()


@torch.inference_mode()
def make(path: Path, prompts: dict[str, Any], *, with_inner: bool) -> dict[str, Any]:
    """Return the golden data of one model."""
    model = load_model(path)
    records = {}
    for name, prompt in prompts["prompts"].items():
        ids = prompt["ids"]
        last = model(torch.tensor([ids]), use_cache=False, logits_to_keep=1).logits[0, -1]
        record = {"text": prompt["text"], "ids": ids, "last": logits_record(last)}
        record["greedy"] = greedy_record(model, ids, NUM_GREEDY)
        records[name] = record
        print(name, len(ids), record["greedy"]["ids"][:8], min(record["greedy"]["margins"]))
    if with_inner:
        ids = records["long"]["ids"]
        logits = model(torch.tensor([ids[: max(INNER_POSITIONS) + 1]]), use_cache=False).logits[0]
        records["long"]["inner"] = {
            str(position): logits_record(logits[position]) for position in INNER_POSITIONS
        }
    return {
        "model": path.name,
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "prompts": records,
        "perplexity": perplexity_record(model, prompts["text_ids"]),
    }


def dump(document: dict[str, Any], path: Path) -> None:
    """Write JSON with one innermost list a line, so that a diff can be read."""
    text = json.dumps(document, separators=(",", ":"))
    path.write_text(text.replace('],"', '],\n"').replace('},"', '},\n"') + "\n", encoding="utf-8")


def main() -> None:
    """Make the golden file of the GGUF given on the command line."""
    path, prompts = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    name = path.stem
    document = make(path, prompts["models"][name], with_inner=name.startswith("smollm2"))
    dump(document, Path(__file__).with_name(f"{name}.json"))


if __name__ == "__main__":
    main()
