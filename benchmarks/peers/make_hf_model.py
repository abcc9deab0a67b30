"""Write a GGUF model as a Hugging Face folder in bf16, for the peers that read no GGUF.

    python benchmarks/peers/make_hf_model.py MODEL.gguf FOLDER

The weights are those of the GGUF file, dequantised (tests/golden/gguf_to_hf.py). So every peer
starts from the same model, which it then quantises in its own way.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "golden"))
from gguf_to_hf import load_model


def main() -> None:
    """Convert the file on the command line."""
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    load_model(source).to(torch.bfloat16).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
