"""The quick reading of `twostroke run` is Typer's reading, or none."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.cli import answer, app, main, quick_run, run
from twostroke.errors import ConfigError

LINES = [
    "m --prompt hi",
    "m -p hi --raw --json",
    "--prompt hi m --max-tokens 5 -t 2",
    "m --prompt=a=b --temperature=0.5 --stop x --stop=y",
    "m --prompt - --seed 1_000 --top-p 1e-1 --kernels avx2",
    "m --prompt=",
    "m -p hi -n 3 --kv-type q8 --kv-memory 1GB --max-model-len 64 --prefill-chunk 7",
]
NOT_PLAIN = [
    "",
    "m",
    "--prompt hi",
    "m extra --prompt hi",
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


def typer_reads(arguments: list[str]) -> dict[str, Any] | None:
    """The arguments of `answer` as Typer reads them; None for what it refuses."""
    found: dict[str, Any] = {}

    def keep(model: str, **named: Any) -> None:
        found.update(named, model=model)

    original = run.answer
    run.answer = keep  # type: ignore[assignment]
    try:
        app.make_app(["run"])(["run", *arguments])
    except SystemExit:
        return found or None
    finally:
        run.answer = original
    return found


def with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(answer.answer).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return {**defaults, **given}


@pytest.mark.parametrize("line", LINES)
def test_a_plain_line_is_read_as_typer_reads_it(line: str) -> None:
    given = quick_run.parse(line.split())
    assert given is not None
    assert with_defaults(given) == typer_reads(line.split())


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_typer(line: str) -> None:
    assert quick_run.parse(line.split()) is None


WORDS = [*quick_run.VALUES, "-p", "-n", "-t", "--raw", "--json", "m", "x y", "", "-", "--", "-h"]
WORDS += ["5", "--prompt=hi", "--seed=3", "--top-p=", "-n=4", "-n4", "0.5", "nan", "-1", "hi"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=6))
def test_no_line_is_read_in_another_way(words: list[str]) -> None:
    arguments = ["m", "--prompt", "hi", *words]
    given = quick_run.parse(arguments)
    if given is not None:
        assert repr(with_defaults(given)) == repr(_in_order(typer_reads(arguments), given))


def _in_order(read: dict[str, Any] | None, given: dict[str, Any]) -> dict[str, Any]:
    assert read is not None
    return {name: read[name] for name in with_defaults(given)}


def test_the_table_holds_every_flag_of_the_verb_and_no_other() -> None:
    verb: Any = typer.main.get_command(app.make_app(["run"])).commands["run"]  # type: ignore[attr-defined]
    options = [p for p in verb.params if p.param_type_name == "option"]
    known = {*quick_run.VALUES, *quick_run.FLAGS, *quick_run.SHORT}
    assert {o for p in options for o in p.opts} == known
    types = {"text": str, "integer": int, "float": float}
    for p in options:
        for name in p.opts:
            long = quick_run.SHORT.get(name, name)
            if p.is_flag:
                assert quick_run.FLAGS[long] == p.name
            else:
                assert quick_run.VALUES[long] is types[p.type.name]
                assert p.multiple == (long == "--stop") and p.nargs == 1 and p.envvar is None


def test_a_shell_that_completes_gets_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TWOSTROKE_COMPLETE", "complete_bash")
    assert quick_run.parse(LINES[0].split()) is None


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

    monkeypatch.setattr(answer, "answer", fail)
    monkeypatch.setattr(run, "answer", fail)
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
