"""Make the golden token ids: every text of corpus.json through an independent tokenizer.

Oracle 1 is llama.cpp on the same GGUF file. Oracle 2 is the `tokenizers` library on the published
tokenizer.json, where there is one. With both, the ids of oracle 2 are stored, and the differences
are printed.

    python -m venv oracle && oracle/bin/pip install llama-cpp-python tokenizers
    oracle/bin/python make_tokens.py MODEL.gguf OUT.json [--tokenizer-json FILE]

In a text of the group "special", {end} stands for the model's end token and is parsed as that
token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import llama_cpp
from llama_cpp import Llama
from tokenizers import Tokenizer

HERE = Path(__file__).parent
Encode = Callable[[str, bool], list[int]]


def gguf_oracle(path: Path) -> tuple[Encode, str]:
    model = Llama(str(path), vocab_only=True, verbose=False)
    end = model.detokenize([model.token_eos()], special=True).decode()

    def encode(text: str, special: bool) -> list[int]:
        return list(model.tokenize(text.encode(), add_bos=False, special=special)) if text else []

    return encode, end


def json_oracle(path: Path) -> Encode:
    parsing, plain = Tokenizer.from_file(str(path)), Tokenizer.from_file(str(path))
    plain.encode_special_tokens = True

    def encode(text: str, special: bool) -> list[int]:
        return list((parsing if special else plain).encode(text, add_special_tokens=False).ids)

    return encode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer-json", type=Path)
    args = parser.parse_args()
    corpus = json.loads((HERE / "corpus.json").read_text())
    first, end = gguf_oracle(args.model)
    second = json_oracle(args.tokenizer_json) if args.tokenizer_json else None
    groups: dict[str, dict[str, list[int]]] = {}
    differing: dict[str, list[int]] = {}
    for group, special in (("plain", False), ("special", True)):
        groups[group] = {}
        for entry in corpus[group]:
            text = entry["text"].replace("{end}", end)
            ids = first(text, special)
            if second is not None and (other := second(text, special)) != ids:
                differing[entry["name"]] = ids
                print(f"differs: {entry['name']}\n  llama.cpp {ids}\n  json      {other}")
                ids = other
            groups[group][entry["name"]] = ids
    oracle = f"llama-cpp-python {llama_cpp.__version__}"
    document = {
        "model": args.model.name,
        "end": end,
        "oracle": f"tokenizer.json, compared with {oracle}" if second else oracle,
        "llama_cpp_differs": differing,
        **groups,
    }
    args.out.write_text(json.dumps(document, separators=(",", ":")).replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
