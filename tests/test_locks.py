"""The same build tomorrow: every environment is pinned and hashed, within pyproject's ranges."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "requirements"
with (ROOT / "pyproject.toml").open("rb") as _file:
    PYPROJECT = tomllib.load(_file)
GROUPS: dict[str, list[str]] = PYPROJECT["dependency-groups"]
WANTED = {
    "run": [*PYPROJECT["project"]["dependencies"], *GROUPS["build"]],
    **GROUPS,
}
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
ENVIRONMENTS = [
    pytest.param(
        {
            "python_version": version,
            "python_full_version": f"{version}.0",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": machine,
            "platform_python_implementation": "CPython",
            "implementation_name": "cpython",
            "os_name": "posix",
        },
        id=f"{version}-{machine}",
    )
    for version in PYTHONS
    for machine in ("x86_64", "aarch64")
]


def entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """The requirements of one lock with their hashes."""
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    parts = [re.split(r"\s+--hash=", line.strip()) for line in lines]
    return [(Requirement(first), hashes) for first, *hashes in parts]


def versions(name: str, environment: dict[str, str]) -> dict[str, str]:
    """What one machine installs from a lock: package -> version."""
    found: dict[str, str] = {}
    for requirement, _ in entries(name):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            package = canonicalize_name(requirement.name)
            assert package not in found, f"{package} is locked twice"
            found[package] = str(requirement.specifier).removeprefix("==")
    return found


def test_every_environment_has_its_lock_and_no_lock_is_left_over() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_every_line_is_one_version_with_hashes_and_names_no_place(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert not re.search(r"://|file:|--index|--extra|--find", text)
    assert len(entries(name)) >= 1
    for requirement, hashes in entries(name):
        assert re.fullmatch(r"==[\w.!+]+", str(requirement.specifier)) and requirement.url is None
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", h) for h in hashes)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", WANTED)
def test_the_locked_versions_are_within_the_ranges(name: str, environment: dict[str, str]) -> None:
    locked = versions(name, environment)
    for text in WANTED[name]:
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate(environment):
            assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)]), text


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", ["build", "dev"])
def test_locks_that_share_an_environment_agree(name: str, environment: dict[str, str]) -> None:
    run, other = versions("run", environment), versions(name, environment)
    assert {p: v for p, v in other.items() if p in run} == {p: run[p] for p in other if p in run}


def test_a_build_from_the_wheel_needs_only_tools_of_the_build_lock() -> None:
    assert set(PYPROJECT["build-system"]["requires"]) <= set(GROUPS["build"])


@pytest.mark.parametrize("what", sorted(WANTED.keys() - {"build"}))
def test_pip_is_asked_for_nothing_that_has_no_hash(tmp_path: Path, what: str) -> None:
    log = tmp_path / "log"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >>{log}\n')
    python.chmod(0o755)
    subprocess.run(
        ["bash", str(ROOT / ".ci" / "install"), str(python), what], check=True, capture_output=True
    )
    calls = log.read_text().splitlines()
    own = "-m pip install -q --no-deps --no-build-isolation -e ."
    unlocked = [call for call in calls if "--require-hashes" not in call]
    assert all(call.split(" -C ")[0] == own for call in unlocked), "only the project itself"
    assert len(unlocked) == (what in ("run", "dev"))
    assert sum(f"-r requirements/{what}.txt" in call for call in calls) == 1
