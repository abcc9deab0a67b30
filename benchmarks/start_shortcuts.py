"""Time from process start to the first token, with and without each shortcut of the start.

    python benchmarks/start_shortcuts.py MODEL.gguf [--rounds 15] [--threads 2]

The shortcut is `dataclass.py`: classes made without compiling their methods. It is taken out of a
copy of the package; copy and package start in turn, and the difference of one round is taken. A
shortcut stays in the package while its median is at least 20 ms. (A reader of plain command lines
without Typer was worth 12 to 23 ms and went.) The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from cold_start import PROMPT
from machine import machine_card

import twostroke._native

PACKAGE = Path(__file__).parent.parent / "src" / "twostroke"
# The file, the text taken out and what stands in its place.
WITHOUT = {
    "dataclass": (
        "dataclass.py",
        "    dataclass = _fast_dataclass\n",
        "    from dataclasses import dataclass\n",
    ),
}
# An editable install's finder comes before every path: it goes, so that the copy is imported.
START = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, sys.argv.pop(1))
from twostroke.cli.main import main
main()
"""


def copy_without(shortcut: str | None, folder: Path) -> Path:
    """Copy the package into `folder`, without one shortcut; return the folder."""
    copy = folder / (shortcut or "whole") / "twostroke"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(twostroke._native.__file__, copy)
    if shortcut is not None:
        name, old, new = WITHOUT[shortcut]
        text = (copy / name).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name} does not hold the text that this program takes out")
        (copy / name).write_text(text.replace(old, new))
    return copy.parent


def first_byte_s(folder: Path, model: Path, threads: int) -> float:
    """Return the seconds from process start to the first byte of the answer."""
    command = [sys.executable, "-c", START, str(folder)]
    command += ["run", str(model), "--raw", "--prompt", PROMPT]
    command += ["--max-tokens", "1", "--temperature", "0", "--threads", str(threads)]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.communicate(timeout=60)
    if not first or process.returncode != 0:
        raise SystemExit(f"{folder.name}: the command failed")
    return seconds


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description="What each shortcut of the start is worth.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kinds = (None, *WITHOUT)
        folders = {kind: copy_without(kind, Path(folder)) for kind in kinds}
        rows: dict[str | None, list[float]] = {kind: [] for kind in kinds}
        for i in range(arguments.rounds + 1):
            order = kinds if i % 2 else kinds[::-1]
            times = {k: first_byte_s(folders[k], arguments.model, arguments.threads) for k in order}
            if i:  # the first round compiles
                for kind, value in times.items():
                    rows[kind].append(value)
    whole = rows.pop(None)
    results = {"whole_ms": round(1e3 * statistics.median(whole), 1)}
    for kind, values in rows.items():
        gains = [1e3 * (value - base) for value, base in zip(values, whole, strict=True)]
        low, middle, high = statistics.quantiles(gains, n=4)
        results[f"{kind}_ms"] = [round(low, 1), round(middle, 1), round(high, 1)]
        print(f"{kind}: {middle:.1f} ms ({low:.1f} to {high:.1f})", file=sys.stderr)
    print(json.dumps({"results": results, "machine": machine_card()}))


if __name__ == "__main__":
    main()
