"""A wish for reasoning: what it means, and the template variables that say the same."""

from __future__ import annotations

import pytest

from twostroke.errors import RequestError
from twostroke.generation.reasoning import EFFORTS, Reasoning


def test_an_effort_or_a_budget_switches_reasoning_on_or_off() -> None:
    assert Reasoning().is_on is None
    assert Reasoning(effort="none").is_on is False
    assert all(Reasoning(effort=effort).is_on for effort in EFFORTS if effort != "none")
    assert Reasoning(budget_tokens=0).is_on is False
    assert Reasoning(budget_tokens=64).is_on is None, "a bound alone asks for nothing"
    assert Reasoning(effort="none", is_enabled=True).is_on is True


def test_a_template_gets_the_variables_that_it_reads() -> None:
    off = Reasoning(effort="none")
    assert off.variables({"enable_thinking"}.__contains__) == {"enable_thinking": False}
    assert off.variables({"thinking", "reasoning_effort"}.__contains__) == {
        "thinking": False,
        "reasoning_effort": "none",
    }
    assert Reasoning(effort="low").variables(lambda _: False) == {}
    assert Reasoning(budget_tokens=9).variables(lambda _: True) == {}


@pytest.mark.parametrize("wish", [{"effort": "max"}, {"budget_tokens": -1}])
def test_a_wish_that_cannot_be_is_refused(wish: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        Reasoning(**wish)  # type: ignore[arg-type]
    assert caught.value.param in ("reasoning_effort", "budget_tokens")
