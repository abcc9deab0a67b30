"""The command line of `twostroke run`: where the prompt stands, and how an interruption ends."""

from __future__ import annotations

import pytest

from twostroke.cli import main, run
from twostroke.errors import ConfigError


def test_a_prompt_stands_behind_the_model_or_behind_its_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for line in (["run", "m", "hi", "--prompt", "hi"], ["run", "m", "hi", "-phi"]):
        assert main.invoke(line) == 2
        assert "the prompt is given twice" in capsys.readouterr().err
    for line in (["run", "m"], ["run", "m", "-n5"]):
        assert main.invoke(line) == 2
        assert "no prompt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (EOFError(), 1),
        (ConfigError("no"), ConfigError.exit_code),
    ],
)
def test_an_interrupted_answer_ends_with_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(run, "command", fail)
    assert main.invoke(["run", "m", "--prompt", "hi"]) == code
