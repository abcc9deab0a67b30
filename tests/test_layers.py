"""Imports that the layer contracts cannot see: the native module, torch, web frameworks."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "twostroke"


@cache
def imported_names(path: Path) -> set[str]:
    """Return every module that a file imports, function bodies included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize(
    ("module", "room"),
    [
        ("twostroke._native", "backend"),
        ("fastapi", "server"),
        ("starlette", "server"),
        ("uvicorn", "server"),
        ("typer", "cli"),
    ],
)
def test_only_one_room_imports_it(module: str, room: str) -> None:
    files = [p for p in SOURCE.rglob("*.py") if p.relative_to(SOURCE).parts[0] != room]
    assert len(files) > 20
    guilty = [
        p
        for p in files
        if any(n == module or n.startswith(module + ".") for n in imported_names(p))
    ]
    assert not guilty


@pytest.mark.parametrize("module", ["pickle", "marshal", "shelve", "torch"])
def test_nothing_imports_what_runs_or_trusts_foreign_data(module: str) -> None:
    guilty = [p for p in SOURCE.rglob("*.py") if module in imported_names(p)]
    assert not guilty


@pytest.mark.parametrize(
    "module",
    ["twostroke_doctor.parsed", "twostroke.scheduler.scheduler", "twostroke.engine.engine"],
)
def test_the_core_loads_without_native_torch_or_web(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "bad = {'twostroke._native', 'torch', 'fastapi', 'uvicorn'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
