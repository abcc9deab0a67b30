"""Characters per token of several languages, and characters a second at one rate of tokens.

    python benchmarks/characters.py MODEL.gguf [MODEL.gguf ...] [--rate 40]

The text is one passage per language, from tests/golden/languages.json. Prints a Markdown table: for
each model the characters per token, then the characters a second at `--rate` tokens a second.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from twostroke.model.loaded import load_model

PASSAGES = Path(__file__).parent.parent / "tests" / "golden" / "languages.json"


def characters_per_token(model: str) -> dict[str, float]:
    """Return the mean number of characters per token, by language."""
    loaded = load_model(model)
    try:
        passages: dict[str, str] = json.loads(PASSAGES.read_text(encoding="utf-8"))
        return {
            language: len(text) / len(loaded.tokenizer.encode(text, add_special=False))
            for language, text in passages.items()
        }
    finally:
        loaded.file.close()


def table(models: list[str], rate: float) -> list[str]:
    """Return the table as Markdown lines."""
    columns = {Path(m).stem.split("-")[0]: characters_per_token(m) for m in models}
    lines = [f"| language | {' | '.join(columns)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for language in next(iter(columns.values())):
        cells = [f"{c[language]:.2f}, {c[language] * rate:.0f}" for c in columns.values()]
        lines.append(f"| {language} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rate", type=float, default=40.0)
    arguments = parser.parse_args()
    print("\n".join(table(arguments.models, arguments.rate)))


if __name__ == "__main__":
    main()
