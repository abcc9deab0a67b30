"""Jinja for templates that a stranger wrote: no reach into Python, and a bound on time, steps and
memory.

Every loop turn and macro call takes a step from a budget; every operation that can make text much
longer than its inputs is checked first. Knows nothing of chats.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import filters, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SOURCE_CHARS = 1 << 18
MAX_CHARS = 1 << 25  # of any one string that a template makes
MAX_MADE_CHARS = 1 << 28  # of all of them in one rendering
MAX_STEPS = 400_000
MAX_RANGE = 10_000
MAX_VALUES = 200_000  # values inside one list or mapping that is written out
DEADLINE_S = 0.8  # of this thread's CPU time, so that a busy machine refuses nothing
_RUN = "_run"

# Left out on purpose: `round`, `sum`, `center`, `format` and the like, which make much out of
# little.
_FILTERS = [
    "abs",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "int",
    "items",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "safe",
    "select",
    "selectattr",
    "sort",
    "title",
    "trim",
    "unique",
    "upper",
]
_STR_METHODS = frozenset(
    [
        "capitalize",
        "count",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "islower",
        "isnumeric",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "rfind",
        "replace",
        "rfind",
        "rindex",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
    ]
)


class BoundExceeded(Exception):
    """A template used up its time, steps or memory."""


class RaisedByTemplate(Exception):
    """The template itself refused, by `raise_exception`."""


class Run:
    """What one rendering has used so far. Its fields are hidden from the template."""

    def __init__(self, messages: Iterable[object], now: datetime.datetime) -> None:
        self._places = {id(message): place for place, message in enumerate(messages)}
        self._num_steps = 0
        self._num_chars = 0
        self._now = now
        self._end_s = time.thread_time() + DEADLINE_S
        self._message: int | None = None

    def _step(self, item: object) -> None:
        self._num_steps += 1
        if self._num_steps > MAX_STEPS:
            raise BoundExceeded(f"more than {MAX_STEPS} loop steps")
        if time.thread_time() > self._end_s:
            raise BoundExceeded("its time is up")
        place = self._places.get(id(item))
        if place is not None:
            self._message = place

    def _made(self, num_chars: int) -> None:
        """Take note, before it is made, of a text or list."""
        _check_chars(num_chars)
        self._num_chars += num_chars
        if self._num_chars > MAX_MADE_CHARS:
            raise BoundExceeded(f"more than {MAX_MADE_CHARS} characters made")
        self._step(None)


def message_reached(run: Run) -> int | None:
    """Return the index of the message whose loop turn began last."""
    return run._message


def render(template: jinja2.Template, run: Run, variables: Mapping[str, object]) -> str:
    """Render within the run's bounds and those of the output.

    Raises:
        BoundExceeded, RaisedByTemplate: see there. jinja2.TemplateError and any error of the
        template's own making pass through.
    """
    parts: list[str] = []
    num_chars = 0
    for part in template.generate({**variables, _RUN: run}):
        num_chars += len(part)
        _check_chars(num_chars)
        run._step(None)
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
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=_written,
        )
        allowed = {name: self.filters[name] for name in _FILTERS}
        self.filters = {**allowed, **_BOUNDED_FILTERS}
        self.globals = {
            "range": _range,
            "dict": dict,
            "namespace": self.globals["namespace"],
            "raise_exception": _raise,
            "strftime_now": _strftime_now,
        }

    def compile_source(self, source: str) -> tuple[jinja2.Template, frozenset[str]]:
        """Parse, put the step counters in, and compile.

        Returns: the template, and the strings that its expressions spell.

        Raises:
            jinja2.TemplateError: the source is not a template.
        """
        tree = self.parse(source)
        constants = (constant.value for constant in tree.find_all(nodes.Const))
        literals = frozenset(value for value in constants if isinstance(value, str))
        _Metering().visit(tree)
        code = self.compile(tree)
        return jinja2.Template.from_code(self, code, self.make_globals(None)), literals

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse underscored names, numbers' methods, and strings' but the listed ones."""
        if isinstance(obj, str):
            return attr in _STR_METHODS
        return not isinstance(obj, (int, float, bytes, Run)) and super().is_safe_attribute(
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
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            name = getattr(obj, "__name__", "")
            if name == "replace":
                return _replace(context, owner, *args, **kwargs)
            if name == "join":
                return _join(context, args[0], owner)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check the size of what an operator would make."""
        if operator == "+":
            if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
                _run_of(context)._made(len(left) + len(right))
        elif operator == "*":
            _run_of(context)._made(_product_size(left, right))
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not available in a chat template")
        elif operator == "**" and not (abs(left) < 1 << 32 and abs(right) <= 16):
            raise BoundExceeded("a power is too large")
        return super().call_binop(context, operator, left, right)


class _Metering(NodeTransformer):
    """Puts a step at the head of each loop turn and macro, and a size check round each `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        seen: nodes.Expr = nodes.Const(None)
        if isinstance(node.target, nodes.Name):
            seen = nodes.Name(node.target.name, "load")
        node.body.insert(0, _step_statement(seen))
        if node.test is not None:
            node.test = nodes.And(_filtered(nodes.Const(None), "_step_true"), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _step_statement(nodes.Const(None)))
        return node

    visit_CallBlock = visit_Macro

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), "_concat")


def _filtered(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None)


def _step_statement(seen: nodes.Expr) -> nodes.Node:
    return nodes.ExprStmt(_filtered(seen, "_step"))


class _Generation(Extension):
    """`{% generation %}`, by which training code marks the assistant's part: here only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _run_of(context: Context) -> Run:
    run = context.parent.get(_RUN)
    if not isinstance(run, Run):
        raise BoundExceeded("a part of the template runs outside its bounds")
    return run


@pass_context
def _step(context: Context, item: object) -> None:
    _run_of(context)._step(item)


@pass_context
def _step_true(context: Context, _: object) -> bool:
    _step(context, None)
    return True


def _check_chars(count: int) -> None:
    if count > MAX_CHARS:
        raise BoundExceeded(f"a text longer than {MAX_CHARS} characters")


def _product_size(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > 256:
            raise BoundExceeded("a number is too large")
        return 0
    for sized, times in ((left, right), (right, left)):
        if isinstance(sized, (str, list, tuple)) and isinstance(times, int):
            return len(sized) * max(times, 0)
    return 0


def _check_values(value: object) -> None:
    """Count the values inside lists and mappings, shared ones as often as they would be written."""
    waiting, num_values, num_chars = [value], 0, 0
    while waiting:
        found = waiting.pop()
        num_values += 1
        if num_values > MAX_VALUES:
            raise BoundExceeded(f"a value with more than {MAX_VALUES} parts")
        if isinstance(found, str):
            num_chars += len(found)
            _check_chars(num_chars)
        elif isinstance(found, Mapping):
            waiting += found.keys()
            waiting += found.values()
        elif isinstance(found, (list, tuple, set, frozenset)):
            waiting += found


def _written(value: object) -> object:
    """Return what `{{ value }}` writes; checked before Python writes out a container."""
    if isinstance(value, (str, int, float, Undefined)) or value is None:
        return value
    _check_values(value)
    return str(value)


@pass_context
def _concat(context: Context, values: list[object]) -> str:
    parts = [str(_written(value)) for value in values]
    _run_of(context)._made(sum(map(len, parts)))
    return "".join(parts)


@pass_context
def _replace(context: Context, text: object, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(_written(text)), str(old), str(new)
    limit = -1 if count is None else count
    places = text.count(old) if limit < 0 else min(text.count(old), limit)
    _run_of(context)._made(len(text) + places * max(len(new) - len(old), 0))
    return text.replace(old, new, limit)


@pass_context
def _join(
    context: Context, values: Iterable[object], separator: object = "", attribute: object = None
) -> str:
    if attribute is not None:
        raise SecurityError("join(attribute=...) is not available in a chat template")
    parts = [str(_written(value)) for value in values]
    separator = str(_written(separator))
    _run_of(context)._made(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


@pass_context
def _indent(
    context: Context, text: object, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    text = str(_written(text))
    size = len(width) if isinstance(width, str) else int(width)
    _run_of(context)._made(len(text) + max(size, 0) * (text.count("\n") + 1))
    return filters.do_indent(text, width, first, blank)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as Hugging Face does: no HTML escapes, Unicode as it is."""
    _check_values(value)
    if indent is not None and not 0 <= indent <= 16:
        raise BoundExceeded("an indent of more than 16")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _string(value: object) -> str:
    return str(_written(value))


def _range(*args: int) -> range:
    found = range(*args)
    if len(found) > MAX_RANGE:
        raise BoundExceeded(f"a range of more than {MAX_RANGE}")
    return found


def _raise(message: object = "") -> NoReturn:
    raise RaisedByTemplate(str(message)[:1000])


@pass_context
def _strftime_now(context: Context, pattern: str) -> str:
    if len(pattern) > 256 or any(c.isdigit() for c in pattern):
        raise BoundExceeded("a date pattern with a width, or of more than 256 characters")
    return _run_of(context)._now.strftime(pattern)


_BOUNDED_FILTERS: dict[str, Callable[..., Any]] = {
    "_step": _step,
    "_step_true": _step_true,
    "_concat": _concat,
    "replace": _replace,
    "join": _join,
    "indent": _indent,
    "tojson": _tojson,
    "string": _string,
}
