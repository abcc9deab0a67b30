"""How much a model shall reason before it answers, as a caller asks for it.

Knows no API and no template's spelling: see text/reasoning_style.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.errors import RequestError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
MAX_BUDGET_TOKENS = 2**31 - 1
ON_VARIABLES = ("enable_thinking", "thinking")  # of chat templates: whether the model reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """A wish of one request; None: the model's own default.

    effort: one of EFFORTS; `none` switches reasoning off, every other one switches it on.
    budget_tokens: the most tokens of reasoning; at the budget the reasoning part is closed.
    0 switches reasoning off. is_enabled: wins over what effort and budget imply.

    Raises:
        RequestError: no such effort, or a negative budget.
    """

    effort: str | None = None
    budget_tokens: int | None = None
    is_enabled: bool | None = None

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in EFFORTS:
            raise RequestError(
                "no such reasoning effort",
                value=repr(self.effort[:64]),
                limit=", ".join(EFFORTS),
                param="reasoning_effort",
            )
        budget = self.budget_tokens
        if budget is not None and not 0 <= budget <= MAX_BUDGET_TOKENS:
            raise RequestError(
                "the budget for reasoning is out of range",
                value=budget,
                limit=f"[0, {MAX_BUDGET_TOKENS}]",
                param="budget_tokens",
            )

    @property
    def is_on(self) -> bool | None:
        """Whether reasoning is asked for (True) or forbidden (False); None: neither."""
        if self.is_enabled is not None:
            return self.is_enabled
        if self.budget_tokens == 0 or self.effort == "none":
            return False
        return True if self.effort is not None else None

    def variables(self, reads: Callable[[str], bool]) -> dict[str, Any]:
        """Return values for those variables of the chat template that say the same.

        reads: whether the template reads a variable.
        """
        found: dict[str, Any] = {}
        if self.is_on is not None:
            found = {name: self.is_on for name in ON_VARIABLES if reads(name)}
        if self.effort is not None and reads("reasoning_effort"):
            found["reasoning_effort"] = self.effort
        return found
