"""Jinja for templates that a stranger wrote: no reach into Python, and bounds on time and memory.

Every loop turn and macro call takes a step from a budget (sandbox_metering); every operation that
can make a text much longer than its inputs is checked first (sandbox_bounds). Knows nothing of
chats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from twostroke.text.sandbox_bounds import (
    RUN_VARIABLE,
    TemplateRun,
    check_chars,
    check_power,
    count_chars,
    printed,
    product_chars,
    run_of,
    take_step,
)
from twostroke.text.sandbox_functions import (
    BOUNDED_FILTERS,
    FUNCTIONS,
    JINJA_FILTERS,
    STRING_METHODS,
    join,
    replace,
)
from twostroke.text.sandbox_metering import METERING_FILTERS, GenerationTag, Metering


def render(template: jinja2.Template, run: TemplateRun, variables: Mapping[str, object]) -> str:
    """Render within the run's bounds and those of the output.

    Raises:
        BoundExceeded: the template used up its time, steps or memory.
        RaisedByTemplate: the template refused.
        jinja2.TemplateError, and any error that the template's code raises.
    """
    parts: list[str] = []
    num_chars = 0
    for part in template.generate({**variables, RUN_VARIABLE: run}):
        num_chars += len(part)
        check_chars(num_chars)
        take_step(run)
        parts.append(part)
    return "".join(parts)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of Hugging Face chat templates, bounded."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=False,
            autoescape=False,
            cache_size=0,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=printed,
        )
        allowed = {name: self.filters[name] for name in JINJA_FILTERS}
        self.filters = {**allowed, **BOUNDED_FILTERS, **METERING_FILTERS}
        self.globals = {**FUNCTIONS, "namespace": self.globals["namespace"]}

    def compile_source(self, source: str) -> tuple[jinja2.Template, frozenset[str]]:
        """Parse, put the step counters in, and compile.

        Returns: the template, and the strings that its expressions spell.

        Raises:
            jinja2.TemplateError: the source is not a template.
        """
        tree = self.parse(source)
        constants = (constant.value for constant in tree.find_all(nodes.Const))
        literals = frozenset(value for value in constants if isinstance(value, str))
        Metering().visit(tree)
        code = self.compile(tree)
        return jinja2.Template.from_code(self, code, self.make_globals(None)), literals

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse underscored names, numbers' methods, and strings' but the listed ones."""
        if isinstance(obj, str):
            return attr in STRING_METHODS
        return not isinstance(obj, (int, float, bytes, TemplateRun)) and super().is_safe_attribute(
            obj, attr, value
        )

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse at once, also where the value would only have been printed."""
        raise SecurityError(f"{attribute!r} of {type(obj).__name__!r} is not available")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuse `str.format`, whose field widths make much out of little."""
        if super().wrap_str_format(value) is not None:
            raise SecurityError("str.format is not available in a chat template")
        return None

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function; the methods `replace` and `join` of a text are the bounded ones."""
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            name = getattr(obj, "__name__", "")
            if name == "replace":
                return replace(context, owner, *args, **kwargs)
            if name == "join":
                return join(context, args[0], owner)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check the size of an operator's result before it is made."""
        if operator == "+":
            if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
                count_chars(run_of(context), len(left) + len(right))
        elif operator == "*":
            count_chars(run_of(context), product_chars(left, right))
        elif operator == "**":
            check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not available in a chat template")
        return super().call_binop(context, operator, left, right)
