"""Write the prompts of the golden data as token ids. Usage: make_prompts.py GGUF_FOLDER PROMPTS

Ids come from the tokenizer that transformers builds from the GGUF file. llama.cpp gives the same
ids for these texts (README.md).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

MODELS = (
    "smollm2-135m-instruct-q4_1",
    "gemma-3-270m-q4_k_m",
    "qwen2.5-coder-0.5b-instruct-q4_k_m",
)
RAW = "The capital of France is"
QUESTION = "Explain in three sentences why the sky is blue."
BASE_MODEL_CHAT = (
    f"Question: {QUESTION}\nAnswer:"  # gemma-3-270m is a base model without a template
)
CODE = '''import heapq


def dijkstra(graph, start):
    """Return the shortest distance from start to every node."""
    distances = {start: 0}
    queue = [(0, start)]
    while queue:
        distance, node = heapq.heappop(queue)
        if distance > distances[node]:
            continue
'''
LONG_TOKENS = 700
HERE = Path(__file__).parent


def load_tokenizer(folder: Path, model: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a GGUF file; smollm splits digits, which transformers leaves out."""
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=f"{model}.gguf")
    if model.startswith("smollm2"):
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    return tokenizer


def prompts_of(folder: Path, model: str, text: str) -> dict[str, Any]:
    """Return the ids of the four prompts and of the perplexity text for one model."""
    tokenizer = load_tokenizer(folder, model)
    bos = [tokenizer.bos_token_id] if model.startswith("gemma") else []

    def ids_of(part: str) -> list[int]:
        return tokenizer(part, add_special_tokens=False)["input_ids"]

    chat_text = BASE_MODEL_CHAT
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": QUESTION}]
        chat_text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
    texts = {"raw": RAW, "chat": chat_text, "code": CODE}
    prompts = {name: {"text": part, "ids": bos + ids_of(part)} for name, part in texts.items()}
    prompts["long"] = {"text": None, "ids": (bos + ids_of(text))[:LONG_TOKENS]}
    return {"prompts": prompts, "text_ids": ids_of(text)}


def main() -> None:
    """Write the prompts of the models in the folder given on the command line."""
    folder = Path(sys.argv[1])
    text = (HERE / "text.txt").read_text(encoding="utf-8")
    models = {model: prompts_of(folder, model, text) for model in MODELS}
    document = json.dumps({"models": models}, separators=(",", ":"), ensure_ascii=False)
    Path(sys.argv[2]).write_text(document.replace('],"', '],\n"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
