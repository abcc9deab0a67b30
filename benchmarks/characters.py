"""Characters a second at the same tokens a second: what a tokenizer makes of several languages.

    python benchmarks/characters.py MODEL.gguf [MODEL.gguf ...] [--rate 40]

The text is one passage in each language, as tests/golden/languages.json has it. Prints a Markdown
table: for each model the characters a token, then the characters a second at the rate.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from twostroke.model.loaded import load_model

PASSAGES = Path(__file__).parent.parent / "tests" / "golden" / "languages.json"


def characters_per_token(model: str) -> dict[str, float]:
    """Return how many characters a token holds, by language."""
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
    """Return the lines of the table."""
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
