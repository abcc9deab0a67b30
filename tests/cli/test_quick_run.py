"""The quick reading of `twostroke run` is Typer's reading, or none."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.cli import app, main, quick_run, run
from twostroke.errors import ConfigError

LINES = [
    "m --prompt hi",
    "m -p hi --raw --json",
    "--prompt hi m --max-tokens 5 -t 2",
    "m --prompt=a=b --temperature=0.5 --stop x --stop=y",
    "m --prompt - --seed 1_000 --top-p 1e-1 --kernels avx2",
    "m --prompt=",
    "m",
    "m hi --raw -n 5",
    "--seed 3 m a=b",
    "m extra --prompt hi",
    "m -p hi -n 3 --kv-type q8 --kv-memory 1GB --max-model-len 64 --prefill-chunk 7",
]
NOT_PLAIN = [
    "",
    "--prompt hi",
    "m hi extra",
    "m --prompt hi --help",
    "m --prompt hi --max-tokens five",
    "m --prompt hi --max-tokens -1",
    "m --prompt hi --max-tokens",
    "m --prompt hi --prompt again",
    "m --prompt --raw",
    "m --prompt hi --raw --raw",
    "m --prompt hi --raw=1",
    "m -phi",
    "m --prompt hi --promp x",
    "m --prompt hi -- rest",
    "m -p=hi",
    "- --prompt hi",
    "m --prompt hi --version",
]


def typer_reads(words: list[str]) -> dict[str, Any] | None:
    """The values of the options as Typer reads them; None for a line that it refuses."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "command", lambda **_: None)
        patch.setattr(
            "twostroke.cli.typer_command.arguments_of",
            lambda options, values: found.update(values) or {},
        )
        with pytest.raises(SystemExit):
            app.make_app(["run"])(["run", *words])
    return found or None


def quick_reads(words: list[str]) -> dict[str, Any] | None:
    """The values as the quick reader has them, defaults included."""
    values = quick_run.parse(run.OPTIONS, words)
    return None if values is None else {o.name: o.default for o in run.OPTIONS} | values


@pytest.mark.parametrize("line", LINES)
def test_a_plain_line_is_read_as_typer_reads_it(line: str) -> None:
    values = quick_reads(line.split())
    assert values is not None
    assert values == typer_reads(line.split())


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_typer(line: str) -> None:
    assert quick_reads(line.split()) is None


WORDS = [flag for option in run.OPTIONS for flag in option.flags]
WORDS += ["m", "x y", "", "-", "--", "-h"]
WORDS += ["5", "--prompt=hi", "--seed=3", "--top-p=", "-n=4", "-n4", "0.5", "nan", "-1", "hi"]
WORDS += ["--raw=", "--stop=", "a=b"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=6))
def test_no_line_is_read_in_another_way(words: list[str]) -> None:
    for line in (["m", "--prompt", "hi", *words], ["m", *words]):
        values = quick_reads(line)
        if values is not None:
            assert repr(values) == repr(typer_reads(line))


def test_a_prompt_stands_behind_the_model_or_behind_its_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for line in (["run", "m", "hi", "--prompt", "hi"], ["run", "m", "hi", "-phi"]):
        assert main.invoke(line) == 2
        assert "the prompt is given twice" in capsys.readouterr().err
    for line in (["run", "m"], ["run", "m", "-n5"]):
        assert main.invoke(line) == 2
        assert "no prompt" in capsys.readouterr().err


def test_a_shell_that_completes_gets_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TWOSTROKE_COMPLETE", "complete_bash")
    assert quick_run.parse(run.OPTIONS, LINES[0].split()) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (EOFError(), 1),
        (ConfigError("no"), ConfigError.exit_code),
    ],
)
def test_an_interrupted_answer_ends_as_under_typer(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(run, "command", fail)
    assert main.invoke(["run", "m", "--prompt", "hi"]) == code
    assert main.invoke(["run", "m", "-phi"]) == code  # through Typer


def test_a_plain_run_imports_no_typer() -> None:
    code = (
        "import sys\n"
        "from twostroke.cli.main import invoke\n"
        "assert invoke(['run', '/nowhere.gguf', '--prompt', 'hi']) != 0\n"
        "sys.exit('typer' in sys.modules or 'click' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"no such file" in done.stderr
