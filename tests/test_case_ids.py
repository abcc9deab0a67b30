"""Every case id in a test has its row in tests/README.md, and every row has its tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = (TESTS / "README.md").read_text(encoding="utf-8")
_ID = r"[BCDFKLMPRSTUXZ]\d{1,2}"
_OTHER_NAMES = {"F16", "F32", "P50", "P95", "P99"}  # tensor types and percentiles
_SOURCE = re.compile(r"#\d+|arXiv:\d|^public logs$|^the source of ")
ROWS = re.findall(rf"^\| ({_ID}) \| (.+?) \| .+? \| (.+?) \|$", TABLE, re.MULTILINE)


def named(tree: ast.Module) -> Iterator[str]:
    """Yield the parts of test names, in capitals, and an id that a string begins with."""
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and node.name.startswith("test_"):
            yield from node.name.upper().split("_")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(rf"^{_ID}(?=[ :,]|$)", node.value)


def used() -> dict[str, set[str]]:
    """Return where each case is tested: id -> files below tests/."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("*.py"):
        for name in named(ast.parse(path.read_text(encoding="utf-8"))):
            if re.fullmatch(_ID, name) and name not in _OTHER_NAMES:
                found.setdefault(name, set()).add(path.relative_to(TESTS).as_posix())
    return found


def test_the_table_has_one_row_for_each_case_in_a_test() -> None:
    assert sorted(case for case, _, _ in ROWS) == sorted(used())


def test_the_files_of_a_row_hold_its_case() -> None:
    tested = used()
    for case, _, files in ROWS:
        shown = set(re.findall(r"`([^`]+)`", files))
        assert shown and shown <= tested[case], f"{case} is tested in {sorted(tested[case])}"


def test_each_row_names_the_public_report() -> None:
    for case, source, _ in ROWS:
        assert _SOURCE.search(source), case
