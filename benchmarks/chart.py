"""Draw docs/speed.svg from results/peers-*.jsonl: a bar for each engine in each test, ours first.

    python benchmarks/chart.py [--out docs/speed.svg]

Each test has a scale of its own, because tests differ by orders of magnitude. Numbers are tok/s.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COLOURS = {"twostroke": "#d9480f", "llamacpp": "#4c6ef5"}
OTHER = "#868e96"
BAR, GAP, LEFT, WIDTH, RIGHT = 16, 10, 250, 420, 110


def summaries() -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the summary rows of each model and test, in the order of the files."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("peers-*.jsonl")):
        model = path.stem.removeprefix("peers-")
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["kind"] == "summary":
                groups.setdefault(f"{model} {row['test']}", []).append(row)
    return list(groups.items())


def draw(groups: list[tuple[str, list[dict[str, Any]]]]) -> str:
    """Return the chart as SVG."""
    parts, y = [], GAP
    for title, rows in groups:
        best = max(row["tok_per_s"] for row in rows)
        parts.append(f'<text x="4" y="{y + BAR - 4}">{escape(title)}</text>')
        for row in rows:
            width = max(1, round(WIDTH * row["tok_per_s"] / best))
            colour = COLOURS.get(row["engine"], OTHER)
            label = f"{row['tok_per_s']:,.0f} {row['engine']}"
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{width}" height="{BAR - 3}" fill="{colour}"/>'
                f'<text x="{LEFT + width + 5}" y="{y + BAR - 5}">{escape(label)}</text>'
            )
            y += BAR
        y += GAP
    size = f'width="{LEFT + WIDTH + RIGHT}" height="{y}"'
    style = "font-family:sans-serif;font-size:11px;fill:#495057"
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">\n{body}\n</svg>\n'


def main() -> None:
    """Write the chart."""
    parser = argparse.ArgumentParser(description="Draw the peers' results.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "speed.svg")
    out = parser.parse_args().out
    out.write_text(draw(summaries()), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
