"""The verb `doctor`: exit codes, outputs, and that it needs no compiler and no NumPy."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doctor import doctor_logs as log
from tests.doctor.fake_endpoint import FakeEndpoint
from twostroke.cli.main import invoke

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def slow_log(tmp_path):
    path = tmp_path / "my.log"
    path.write_text(log.ollama(prompt=(13, 19.747), decode=(1133, 127.682), load_s=0.56))
    return path


def test_the_page_goes_to_stdout_and_the_exit_code_is_zero(slow_log, capsys):
    assert invoke(["doctor", str(slow_log)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Decode holds 86 % of the wait") and err == ""
    assert f"{slow_log.name}:1" in out


def test_json_is_one_document(slow_log, capsys):
    assert invoke(["doctor", str(slow_log), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert [f["code"] for f in whole["findings"]] == ["DECODE", "LOAD"]
    assert len(whole["records"]) == 1


def test_json_lines_hold_the_summary_first_and_the_records_last(slow_log, capsys):
    assert invoke(["doctor", str(slow_log), "--jsonl"]) == 0
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds[0] == "summary" and kinds[-1] == "record"


def test_the_html_file_is_written_or_the_reason_is_told(slow_log, tmp_path, capsys):
    target = tmp_path / "page.html"
    assert invoke(["doctor", str(slow_log), "--html", str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert invoke(["doctor", str(slow_log), "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_fail_on_a_code_that_was_found(slow_log, capsys):
    assert invoke(["doctor", str(slow_log), "--fail-on", "QUEUE"]) == 0
    assert invoke(["doctor", str(slow_log), "--fail-on", "QUEUE", "--fail-on", "LOAD"]) == 1
    assert invoke(["doctor", str(slow_log), "--fail-on", "LAOD"]) == 2
    assert "LAOD" in capsys.readouterr().err


def test_an_unknown_cause_exits_with_three(tmp_path, capsys):
    path = tmp_path / "other.log"
    path.write_text("nothing to see\n")
    assert invoke(["doctor", str(path)]) == 3
    assert "UNKNOWN" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--dry-run", "x.log"],
        ["/nowhere/my.log"],
        ["x.log", "--device", "abacus"],
        ["--url", "ftp://x"],
    ],
)
def test_wrong_usage_exits_with_two(arguments, capsys):
    assert invoke(["doctor", *arguments]) == 2
    assert capsys.readouterr().err


def test_flags_sharpen_to_the_ceiling(slow_log, capsys):
    flags = ["--weights-gb", "4.7", "--bandwidth", "50"]
    assert invoke(["doctor", str(slow_log), *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "DECODE_BW"


def test_a_dash_reads_standard_input(monkeypatch, capsys):
    text = log.ollama(prompt=(1000, 20.0), decode=(50, 2.0))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert invoke(["doctor", "-"]) == 0
    assert capsys.readouterr().out.startswith("Prefill holds 91 %")


def test_two_logs_are_compared(tmp_path, capsys):
    for name, pp in (("f16", 1511), ("q8_0", 197)):
        text = log.kv_types(name) + log.slot(1, (2000 / pp * 1000, 2000), (4000.0, 120))
        (tmp_path / name).write_text(text)
    assert invoke(["doctor", str(tmp_path / "f16"), str(tmp_path / "q8_0"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "KVQ_FALLBACK"


def test_dry_run_sends_nothing(capsys):
    with FakeEndpoint() as server:
        assert invoke(["doctor", "--url", server.url, "--dry-run"]) == 0
        assert server.how.num_gets == 0 and server.how.bodies == []
    out, err = capsys.readouterr()
    assert out == "" and "8 generations" in err


def test_the_plan_is_told_then_the_endpoint_is_asked(capsys):
    with FakeEndpoint(load_s=0.8) as server:
        code = invoke(["doctor", "--url", server.url, "--prompt-tokens", "200", "--json"])
    out, err = capsys.readouterr()
    found = {f["code"] for f in json.loads(out)["findings"]}
    assert code == 0 and "LOAD" in found
    assert err.index("Will ask") < err.index("first token after")


def test_an_endpoint_that_is_not_there_is_a_failure(capsys):
    assert invoke(["doctor", "--url", "http://127.0.0.1:9"]) == 1
    assert "cannot be reached" in capsys.readouterr().err


def test_the_key_is_read_from_the_named_variable(monkeypatch, capsys):
    monkeypatch.delenv("PROBE_KEY", raising=False)
    arguments = ["doctor", "--url", "http://127.0.0.1:9", "--dry-run", "--api-key-env", "PROBE_KEY"]
    assert invoke(arguments) == 2
    monkeypatch.setenv("PROBE_KEY", "s3cret")
    assert invoke(arguments) == 0
    assert "s3cret" not in "".join(capsys.readouterr())


def run_without(blocked, code, *arguments):
    """Run Python with modules that cannot be imported."""
    block = (
        "import sys\n"
        "class Wall:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name.split('.')[0] in {blocked!r} or name.endswith('._native'):\n"
        "            raise ImportError(f'{name} is not here')\n"
        "sys.meta_path.insert(0, Wall())\n"
    )
    environment = {**os.environ, "TWOSTROKE_NATIVE": "off", "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [sys.executable, "-c", block + code, *arguments],
        capture_output=True, text=True, timeout=60, env=environment, check=False,
    )  # fmt: skip


def test_no_compiler_no_native_module(slow_log):
    code = (
        "from twostroke.cli.main import invoke\n"
        "code = invoke(sys.argv[1:])\n"
        "assert not [m for m in sys.modules if m.endswith('_native')], 'native was imported'\n"
        "sys.exit(code)\n"
    )
    done = run_without({"torch", "fastapi", "uvicorn"}, code, "doctor", str(slow_log))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Decode holds 86 %")


@pytest.mark.parametrize("facts", [[], ["--model", "llama-3.1-8b", "--device", "h100"]])
def test_the_doctor_itself_needs_no_numpy(slow_log, facts):
    code = (
        "from twostroke.cli.app import make_app\nmake_app(['doctor'])(['doctor', *sys.argv[1:]])\n"
    )
    blocked = {"numpy", "torch", "tokenizers", "jinja2", "fastapi", "uvicorn"}
    done = run_without(blocked, code, str(slow_log), "--json", *facts)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["findings"][0]["code"] == "DECODE"
