"""docs/doctor.md is true: its example is printed, and its codes and flags are those of the code."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import typer

from tests.doctor.public_cases import by_name, read
from twostroke.cli.app import make_app
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.finding import CODES
from twostroke_doctor.given import make_given
from twostroke_doctor.report import text_page

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")


def test_the_example_is_printed_line_by_line():
    example = PAGE.split("## The page\n```\n")[1].split("```")[0].splitlines()
    parsed = read({"my.log": by_name("D25").files["a.log"]})
    shown = [line for line in example if line.strip() != "..."]
    assert len(shown) > 15
    printed = iter(text_page(diagnose(parsed), parsed).splitlines())
    assert [line for line in shown if line not in printed] == []  # `in` goes on where it stopped


def test_every_code_stands_once_with_its_proof():
    assert sorted(re.findall(r"^- `([A-Z_]+)`: ", PAGE, re.MULTILINE)) == sorted(CODES)


def test_the_table_of_facts_holds_every_fact_that_can_be_given():
    command = typer.main.get_command(make_app()).commands["doctor"]
    known = {flag for option in command.params for flag in option.opts}
    table = re.findall(r"^\| `(--[a-z-]+)` \|", PAGE, re.MULTILINE)
    given = ["--" + name.replace("_", "-") for name in signature(make_given).parameters]
    assert sorted(table) == sorted(given)
    assert set(table) <= known
