"""Each command of the guide runs and prints the lines that the guide shows, numbers apart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.characters import table

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "where-does-the-time-go.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d[\d,.]*")


def cases() -> list[tuple[str, list[str]]]:
    """Return each command with the lines that the page shows for it."""
    found: list[tuple[str, list[str]]] = []
    for kind, text in _BLOCKS:
        if kind == "output":
            found[-1][1].extend(text.splitlines())
        else:
            found.extend((line, []) for line in text.splitlines())  # output: of the last
    return found


def shape(line: str) -> str:
    """Return a line without the parts that differ between runs: numbers, units, hashes, gaps."""
    line = re.sub(r"\b[0-9a-f]{16}\b", "HASH", line.strip())
    line = _NUMBER.sub("N", line)
    line = re.sub(r"N (ms|s)\b", "N T", line)
    return re.sub(r"\s+", " ", line)


@pytest.mark.weights
@pytest.mark.parametrize(("command", "shown"), cases(), ids=lambda c: c[:60] if c else "")
def test_a_command_of_the_guide_prints_what_is_shown(
    command: str, shown: list[str], smollm2_path: Path, tmp_path: Path
) -> None:
    script = f'twostroke() {{ "{sys.executable}" -m twostroke "$@"; }}\nset -o pipefail\n{command}'
    env = {**os.environ, "TWOSTROKE_CACHE": str(smollm2_path.parent.parent)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    printed = {shape(line) for line in (done.stdout + done.stderr).splitlines()}
    missing = [line for line in shown if line and re.sub(r"^N\. ", "", shape(line)) not in
               {re.sub(r"^N\. ", "", p) for p in printed}]  # fmt: skip
    assert not missing, f"not printed: {missing}\nprinted:\n{done.stdout}{done.stderr}"


def _rows(lines: list[str], columns: int) -> list[list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row[: columns + 1] for row in cells if not row[0].startswith("---")]


def _shown_rows(columns: int) -> list[list[str]]:
    lines = re.search(r"^\| language.*?(?=\n\n)", PAGE, re.DOTALL | re.MULTILINE)
    assert lines is not None
    return _rows(lines[0].splitlines(), columns)


@pytest.mark.weights
def test_characters_a_token_of_the_sample_model_are_as_shown(smollm2_path: Path) -> None:
    assert _rows(table([str(smollm2_path)], 40.0), 1) == _shown_rows(1)


@pytest.mark.models
def test_characters_a_token_of_all_models_are_as_shown(
    smollm2_path: Path, qwen2_path: Path, gemma3_path: Path
) -> None:
    models = [str(p) for p in (smollm2_path, qwen2_path, gemma3_path)]
    assert _rows(table(models, 40.0), 3) == _shown_rows(3)


def test_the_guide_shows_each_lesson() -> None:
    commands = " ".join(command for command, _ in cases())
    for part in ("run", "--explain", "--no-kv-cache", "--batch", "predict"):
        assert part in commands
    assert sum(bool(shown) for _, shown in cases()) >= 5
