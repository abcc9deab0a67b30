"""Puts the bounds into a parsed template: a step into each loop turn and macro, a check before `~`.

The steps are calls of filters. A template that calls them itself only uses up its own bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from twostroke.text.sandbox_bounds import count_chars, printed, run_of, take_step


class Metering(NodeTransformer):
    """Rewrites a template's tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """Begin each loop turn with a step, also a turn that the loop's filter leaves out."""
        self.generic_visit(node)
        seen: nodes.Expr = nodes.Const(None)
        if isinstance(node.target, nodes.Name):
            seen = nodes.Name(node.target.name, "load")
        node.body.insert(0, _step_statement(seen))
        if node.test is not None:
            node.test = nodes.And(_filtered(nodes.Const(None), "_step_true"), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        """Begin each call with a step."""
        self.generic_visit(node)
        node.body.insert(0, _step_statement(nodes.Const(None)))
        return node

    visit_CallBlock = visit_Macro

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Join by a filter that counts first."""
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), "_concat")


class GenerationTag(Extension):
    """`{% generation %}`, by which training code marks the assistant's part: only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None)


def _step_statement(seen: nodes.Expr) -> nodes.Node:
    return nodes.ExprStmt(_filtered(seen, "_step"))


@pass_context
def _step(context: Context, item: object) -> None:
    take_step(run_of(context), item)


@pass_context
def _step_true(context: Context, _: object) -> bool:
    take_step(run_of(context))
    return True


@pass_context
def _concat(context: Context, values: list[object]) -> str:
    parts = [str(printed(value)) for value in values]
    count_chars(run_of(context), sum(map(len, parts)))
    return "".join(parts)


METERING_FILTERS: dict[str, Callable[..., Any]] = {
    "_step": _step,
    "_step_true": _step_true,
    "_concat": _concat,
}
