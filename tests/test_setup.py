"""On a fresh machine a missing tool is named in one sentence, before anything is built."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHECK = ROOT / ".ci" / "check-tools"


def check(**environment: str) -> tuple[int, str]:
    """Run the check with some variables changed; return its exit code and stderr."""
    done = subprocess.run(
        ["bash", str(CHECK)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def program(folder: Path, name: str, text: str) -> Path:
    """Write an executable script."""
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_this_machine_has_what_is_needed() -> None:
    assert check() == (0, "")


def test_a_missing_python_is_named() -> None:
    code, err = check(PYTHON="python-that-is-not-there")
    assert code == 1 and "install Python 3.10 or newer" in err


def test_an_old_python_is_named_with_its_version(tmp_path: Path) -> None:
    old = program(
        tmp_path,
        "python-old",
        '#!/bin/sh\ncase "$2" in *version_info*) exit 1;; *python_version*) echo 3.8.10;; esac\n',
    )
    code, err = check(PYTHON=str(old))
    assert code == 1 and "3.8.10 is too old" in err


def test_a_compiler_without_cxx20_is_named(tmp_path: Path) -> None:
    broken = program(tmp_path, "c++-old", "#!/bin/sh\nexit 1\n")
    code, err = check(CXX=str(broken))
    assert code == 1 and "does not compile C++20" in err and str(broken) in err


def test_no_compiler_at_all_says_what_to_install(tmp_path: Path) -> None:
    for name in ("bash", "env"):
        found = shutil.which(name)
        assert found
        (tmp_path / name).symlink_to(found)
    code, err = check(PATH=str(tmp_path), CXX="", PYTHON=sys.executable)
    assert code == 1 and "no C++ compiler found" in err and "apt install g++" in err


@pytest.mark.parametrize("words", ["Temporary failure in name resolution", "Connection refused"])
def test_an_install_without_network_says_so_after_pips_own_words(
    tmp_path: Path, words: str
) -> None:
    python = program(tmp_path, "python", f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    done = subprocess.run(
        ["bash", str(ROOT / ".ci" / "install"), str(python), "run"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "the package index cannot be reached" in done.stderr.splitlines()[-1]
