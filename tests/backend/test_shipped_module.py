"""The shipped native module holds the parts an engine uses; single kernels are in another one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from twostroke import _native, _native_testing

ROOT = Path(__file__).parents[2]
SHIPPED = {
    *("KvPool", "Program", "Recorder", "ThreadPool"),
    *("huge_array", "kernel_sets", "kv_head_bytes", "pack_matrix", "packed_bytes"),
    *("peak_ops_per_s", "read_bytes_per_s"),
}


def public_names(module: object) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_")}


def test_the_shipped_module_has_no_binding_of_tests() -> None:
    assert public_names(_native) == SHIPPED
    assert len(public_names(_native_testing)) >= 10
    assert not public_names(_native) & public_names(_native_testing)


def installed_modules(folder: Path, *options: str) -> set[str]:
    """Configure a build in `folder` and return the native modules that it would install."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    cmake = shutil.which("cmake", path=path)
    assert cmake is not None, "the native library was built with CMake"
    nanobind = subprocess.check_output(
        [sys.executable, "-m", "nanobind", "--cmake_dir"], text=True
    ).strip()
    definitions = (f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}", *options)
    subprocess.run(
        [cmake, "-S", str(ROOT), "-B", str(folder), *definitions],
        check=True,
        capture_output=True,
    )
    script = (folder / "cmake_install.cmake").read_text()
    return {name for name in ("_native", "_native_testing") if f"/{name}." in script}


@pytest.mark.parametrize(
    ("options", "modules"),
    [
        ((), {"_native"}),
        (("-DTWOSTROKE_TEST_BINDINGS=ON",), {"_native", "_native_testing"}),
    ],
)
def test_a_default_build_installs_the_shipped_module_alone(
    tmp_path: Path, options: tuple[str, ...], modules: set[str]
) -> None:
    assert installed_modules(tmp_path, *options) == modules
