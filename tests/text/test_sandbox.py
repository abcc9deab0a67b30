"""The sandbox of chat templates: published ones work, none reaches out, each bound holds."""

from __future__ import annotations

import datetime
import time
from typing import Any

import jinja2
import pytest

from twostroke.text import sandbox_bounds
from twostroke.text.sandbox import Sandbox, render
from twostroke.text.sandbox_bounds import BoundExceeded, TemplateRun
from twostroke.text.sandbox_functions import RaisedByTemplate

NOW = datetime.datetime(2026, 11, 30, 17, 36)


def _render(source: str, **variables: Any) -> str:
    template, _ = Sandbox().compile_source(source)
    return render(template, TemplateRun(variables.get("messages", []), NOW), variables)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for x in [1, 2] %}\n  {{ x }}\n{% endfor %}", "  1\n  2\n"),
        ("{% for x in range(9) %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "01"),
        ("{{ {'a': 'é<b>', 'b': [1, none]} | tojson }}", '{"a": "é<b>", "b": [1, null]}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ strftime_now('%d %b %Y') }}", "30 Nov 2026"),
        ("{% generation %}a{{ 1 + 1 }}{% endgeneration %}b", "a2b"),
        ("{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}", "2"),
        ("{{ 'a-b'.split('-')[-1].strip() ~ ('x' | upper) ~ 1 ~ [2] }}", "bX1[2]"),
        ("{{ 'a,b'.replace(',', ';') }}{{ 'a,b' | replace(',', '.') }}", "a;ba.b"),
        ("{{ ['a', 'b'] | join('-') }}{{ '+'.join(['c', 'd']) }}", "a-bc+d"),
        ("{{ 'a\nb' | indent(2) }}{{ '=' * 3 }}{{ 7 % 4 }}{{ 2 ** 3 }}", "a\n  b===38"),
        ("{{ missing }}{{ missing is defined }}{{ none }}", "FalseNone"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}{{ m(2) }}", "<1><2>"),
        ("{% for k, v in {'a': 1}.items() if v %}{{ k }}{{ loop.last }}{% endfor %}", "aTrue"),
        ("{{ {'a': 1} | items | list }}", "[('a', 1)]"),
        ("{{ [{'r': 1}, {}] | selectattr('r') | list | length }}", "1"),
    ],
)  # fmt: skip
def test_the_features_that_published_templates_use_work(source: str, text: str) -> None:
    assert _render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'].mro() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ _run._places.clear() }}",
        "{{ [] | map(attribute='__class__') | list }}{{ ''.__class__.x }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ lipsum.__globals__ }}",
        "{{ cycler.__init__ }}",
        "{{ (1).__class__.__bases__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ '' | attr('__class__') }}",
        "{{ (1).to_bytes(9999999999, 'big') }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ 'x' | center(999999999) }}",
    ],
)
def test_a_template_cannot_reach_out(source: str) -> None:
    with pytest.raises((jinja2.TemplateError, TypeError)):
        _render(source, messages=[{"role": "user"}])


LOOPS = "{% for a in r %}{% for b in r %}{% for c in r %}"
DOUBLING = "{% set n = namespace(x=@) %}{% for i in range(60) %}{% set n.x = # %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(10000) %}" + LOOPS + "{% endfor %}" * 3,
        "{% set r = range(10000) %}" + LOOPS + "x{% endfor %}" * 3,
        "{% for i in range(99999999) %}{% endfor %}",
        "{% for a in 'x' * 9000000 if false %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) ~ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        DOUBLING.replace("@", "'ab'").replace("#", "n.x + n.x"),
        DOUBLING.replace("@", "'ab'").replace("#", "n.x ~ n.x"),
        DOUBLING.replace("@", "'ab'").replace("#", "[n.x, n.x] | join"),
        DOUBLING.replace("@", "'ab'").replace("#", "n.x | replace('', n.x)"),
        DOUBLING.replace("@", "[1]").replace("#", "[n.x, n.x]") + "{{ n.x }}",
        DOUBLING.replace("@", "[1]").replace("#", "[n.x, n.x]") + "{{ n.x | tojson }}",
        DOUBLING.replace("@", "[1]").replace("#", "[n.x, n.x]") + "{{ n.x ~ '' }}",
        DOUBLING.replace("@", "[1]").replace("#", "[n.x, n.x]") + "{{ n.x | string }}",
        DOUBLING.replace("@", "9").replace("#", "n.x * n.x"),
        "{{ 'a' * 999999999999 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'a\n' * 9999 | indent(99999999) }}{{ ('a\n' * 9999) | indent(99999999) }}",
        "{{ strftime_now('%999999999d') }}",
        "{% set s = 'a' * 9999999 %}" + "{% set t = s + s %}" * 40,
        "{% set s = 'a' * 9999999 %}{% for i in range(10000) %}{% set t = s.upper() %}{% endfor %}",
    ],
)  # fmt: skip
def test_every_bound_stops_a_template_within_a_second(source: str) -> None:
    start = time.thread_time()
    with pytest.raises((BoundExceeded, RecursionError)):
        _render(source)
    assert time.thread_time() - start < 1


def test_the_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_bounds, "MAX_CHARS", 1000)
    assert len(_render("{% for i in range(999) %}x{% endfor %}")) == 999
    with pytest.raises(BoundExceeded, match="1000"):
        _render("{% for i in range(1001) %}x{% endfor %}")


def test_raise_exception_carries_the_message_of_the_template() -> None:
    with pytest.raises(RaisedByTemplate, match="only user and assistant"):
        _render("{{ raise_exception('only user and assistant') }}")


def test_the_string_literals_of_a_template_are_returned() -> None:
    _, literals = Sandbox().compile_source("{% if '</think>' in x %}{{ 'a' ~ y['b'] }}{% endif %}c")
    assert {"</think>", "a", "b"} <= literals
