"""Cores and memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twostroke.config import EngineConfig
from twostroke.host import free_memory_bytes, usable_cores


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_cores_that_this_process_may_not_run_on_do_not_count() -> None:
    allowed = os.sched_getaffinity(0)
    assert usable_cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_threads_that_nobody_named_are_the_usable_cores() -> None:
    sizes = {"model_max_len": 64, "block_bytes": 1, "block_size": 16, "free_bytes": 1 << 20}
    assert EngineConfig().resolved(**sizes, num_cores=3).threads == 3
    assert EngineConfig(threads=5).resolved(**sizes, num_cores=3).threads == 5


def _meminfo(folder: Path, text: str = "MemTotal: 9 kB\nMemAvailable: 4096 kB\n") -> Path:
    path = folder / "meminfo"
    path.write_text(text)
    return path


def _control_group(folder: Path, limit: str, used: int, cached: int) -> Path:
    group = folder / "cgroup"
    group.mkdir()
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")
    return group


def test_a_control_group_bounds_the_machines_memory(tmp_path: Path) -> None:
    group = _control_group(tmp_path, "1000000", used=400_000, cached=100_000)
    assert free_memory_bytes(_meminfo(tmp_path), group) == 700_000


def test_a_control_group_without_a_limit_leaves_the_machines_memory(tmp_path: Path) -> None:
    group = _control_group(tmp_path, "max", used=400_000, cached=0)
    assert free_memory_bytes(_meminfo(tmp_path), group) == 4096 * 1024


def test_a_control_group_over_its_limit_has_no_memory_free(tmp_path: Path) -> None:
    group = _control_group(tmp_path, "1000", used=2000, cached=0)
    assert free_memory_bytes(_meminfo(tmp_path), group) == 0


def test_memory_of_an_unknown_system_is_unknown(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path / "missing", tmp_path / "missing") is None
    assert free_memory_bytes(_meminfo(tmp_path, "MemTotal: 9 kB\n"), tmp_path) is None
