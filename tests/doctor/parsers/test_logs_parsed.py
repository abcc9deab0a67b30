"""The result type is bounded, and its page documents every name that it may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.record import RequestRecord, WindowRecord
from twostroke_doctor import FACTS, FLAGS, Fact, Parsed, parsed

PAGE = Path(__file__).parents[3] / "docs" / "logs.md"


def fact(value, name="threads"):
    return Fact(name=name, value=value, engine="llama.cpp")


def test_what_exceeds_the_caps_is_counted(monkeypatch):
    for name in ("MAX_RECORDS", "MAX_WINDOWS", "MAX_FACTS"):
        monkeypatch.setattr(parsed, name, 3)
    result = Parsed()
    result.add_all(RequestRecord(id=str(i), engine="ollama") for i in range(5))
    result.add_all(WindowRecord(engine="vllm") for _ in range(4))
    result.add_all(fact(i) for i in range(9))
    assert [record.id for record in result.records] == ["0", "1", "2"]
    assert len(result.windows) == len(result.facts) == 3
    assert result.dropped == {"records": 2, "windows": 1, "facts": 6}
    assert result.engines == {"ollama": 5, "vllm": 4, "llama.cpp": 9}


def test_a_repeated_fact_is_kept_once_and_counted():
    result = Parsed()
    result.add_all([fact(8), fact(8), fact(4), fact(True, "full_reprocess")])
    assert [one.value for one in result.facts] == [8, 4, True]
    assert result.fact_counts == {"threads": 3, "full_reprocess": 1} and result.dropped == {}


def test_the_last_fact_of_a_name_is_found():
    result = Parsed()
    result.add_all([fact(8), fact(4)])
    found = result.fact("threads")
    assert found is not None and found.value == 4
    assert result.fact("threads", engine="vllm") is None and result.fact("n_ctx") is None


@pytest.mark.parametrize("name", [*FACTS, *FLAGS])
def test_every_name_is_on_the_page_with_its_meaning(name):
    meaning = FLAGS[name] if name in FLAGS else FACTS[name][0]
    row = f"| `{name}` | {meaning} |"
    if name in FACTS and name in FLAGS:
        row = f"| `{name}` | {FACTS[name][0]} |"
    assert row in PAGE.read_text(encoding="utf-8")


def test_the_page_shows_code_that_runs(tmp_path, monkeypatch):
    for name in ("my.log", "huge.log"):
        (tmp_path / name).write_text("eval rate: 3 tokens/s\n")
    monkeypatch.chdir(tmp_path)
    code = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(code, "docs/logs.md", "exec"), {})
