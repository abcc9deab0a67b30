"""Round trips: numbers rendered in each format read back equal; mutated, never as another."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.doctor.parsers.log_text import FORMATS, NUMBERS, Format, Numbers, read_path
from twostroke_doctor import parse

IDS = [one.name for one in FORMATS]
each_format = pytest.mark.parametrize("form", FORMATS, ids=IDS)
NOT_NUMBERS = ("nan", "inf", "-inf", "-1", "-0.11", "Indeterminate", "1e9", "0x10", "١٢")
WRAPPERS = (
    "{}",
    "web-1  | {}",
    "Mar  1 10:00:00 host unit[42]: {}",
    "[45723] {}",
    "\x1b[2m{}\x1b[0m",
)


def assert_reads(form: Format, numbers: Numbers, text: str) -> None:
    items = getattr(parse(text), form.kind)
    assert len(items) == 1, text
    for path, value in form.expect(numbers).items():
        expected = value if value is None else pytest.approx(value, rel=1e-9)
        assert read_path(items[0], path) == expected, path


def assert_nothing_wrong(form: Format, numbers: Numbers, text: str) -> None:
    """Each expected field of whatever is read is unknown or right."""
    for item in getattr(parse(text), form.kind):
        for path, value in form.expect(numbers).items():
            found = read_path(item, path)
            known = value is not None and found is not None
            assert not known or found == pytest.approx(value, rel=1e-9), (path, text)


@each_format
@settings(max_examples=25, deadline=None)
@given(numbers=NUMBERS)
def test_rendered_numbers_read_back_equal(form, numbers):
    assert_reads(form, numbers, form.render(numbers))


@each_format
@settings(max_examples=10, deadline=None)
@given(numbers=NUMBERS)
def test_a_consistent_meter_is_never_flagged(form, numbers):
    (item,) = getattr(parse(form.render(numbers)), form.kind)
    assert "meter_inconsistent" not in item.meter.flags


@pytest.mark.parametrize("form", [f for f in FORMATS if f.comma], ids=lambda f: f.name)
@settings(max_examples=15, deadline=None)
@given(numbers=NUMBERS)
def test_a_decimal_comma_changes_nothing(form, numbers):
    text = form.render(numbers)
    assert_reads(form, numbers, re.sub(r"(?<=\s)(\d+)\.(\d\d)(?= (?:ms|tokens))", r"\1,\2", text))


@pytest.mark.parametrize("form", [f for f in FORMATS if f.reorder], ids=lambda f: f.name)
@settings(max_examples=15, deadline=None)
@given(numbers=NUMBERS, seed=st.integers(0, 40))
def test_the_order_of_keys_changes_nothing(form, numbers, seed):
    assert form.reorder is not None
    assert_reads(form, numbers, form.reorder(form.render(numbers), seed))


@each_format
@settings(max_examples=10, deadline=None)
@given(numbers=NUMBERS, wrapper=st.sampled_from(WRAPPERS), crlf=st.booleans())
def test_wrappers_and_line_ends_change_nothing(form, numbers, wrapper, crlf):
    end = "\r\n" if crlf else "\n"
    lines = form.render(numbers).splitlines()
    assert_reads(form, numbers, "".join(wrapper.format(line) + end for line in lines))


@each_format
@settings(max_examples=10, deadline=None)
@given(numbers=NUMBERS, noise=st.lists(st.text(max_size=60), max_size=4))
def test_foreign_lines_in_between_change_nothing(form, numbers, noise):
    lines = form.render(numbers).splitlines()
    clean = [" ".join(one.split()) for one in noise]
    mixed = [part for line in lines for part in (line, *[c for c in clean if "{" not in c])]
    assert_reads(form, numbers, "\n".join(mixed) + "\n")


@each_format
@settings(max_examples=40, deadline=None)
@given(numbers=NUMBERS, data=st.data())
def test_a_truncated_text_gives_no_wrong_number(form, numbers, data):
    text = form.render(numbers)
    stop = len(re.sub(r"[\d.,\s]*$", "", text)) if form.ends_open else len(text)
    cut = data.draw(st.integers(0, stop))
    if form.ends_open and "\n" in text.strip():  # each of its lines ends in a number
        assume(re.search(r"[\d.]\s*$", text[:cut]) is None)
    assert_nothing_wrong(form, numbers, text[:cut] + data.draw(st.sampled_from(("", "\n", "…\n"))))


@each_format
@settings(max_examples=25, deadline=None)
@given(numbers=NUMBERS, data=st.data())
def test_a_truncated_line_in_a_log_gives_no_wrong_number(form, numbers, data):
    lines = form.render(numbers).splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    stop = len(lines[at])
    if form.ends_open:
        stop = len(re.sub(r"[\d.,\s]*$", "", lines[at]))
    lines[at] = lines[at][: data.draw(st.integers(0, stop))]
    assert_nothing_wrong(form, numbers, "\n".join(lines) + "\n")


@each_format
@settings(max_examples=40, deadline=None)
@given(numbers=NUMBERS, data=st.data())
def test_what_is_no_number_is_never_read_as_one(form, numbers, data):
    text = form.render(numbers)
    found = list(re.finditer(r"(?<![\w.])\d+(?:\.\d+)?", text))
    spot = data.draw(st.sampled_from(found))
    bad = data.draw(st.sampled_from(NOT_NUMBERS))
    mutated = text[: spot.start()] + bad + text[spot.end() :]
    for item in getattr(parse(mutated), form.kind):
        for path in form.expect(numbers):
            value = read_path(item, path)
            assert value is None or 0 <= value < 1e12, (path, mutated)
