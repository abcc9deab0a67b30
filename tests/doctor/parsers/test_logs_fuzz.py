"""Random and mutated lines through every parser: no crash, no hang, bounded state, sane numbers."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from tests.doctor.parsers.log_text import FORMATS, Numbers
from twostroke_doctor import FACTS, FLAGS, Fact, LogScanner
from twostroke_doctor.parsers import scan
from twostroke_doctor.parsers.json_reply import JsonParser
from twostroke_doctor.parsers.lines import unwrap

PARSERS = [*scan._parsers(), scan.OllamaParser(), JsonParser()]
SIGNED_FACTS = ("kv_reserve_bytes", "layers_requested")
MAX_SECONDS_PER_THOUSAND = 2.0  # about 50 times what a thousand lines cost on two busy cores
MAX_OPEN = 600  # items that a parser may hold back, all its tables together
WORDS = (
    *("nan", "inf", "-1", "0.00", "9" * 30, "1,5", "1.2.3", "Indeterminate", "{", "}", '"', "("),
    *("\x00", "\ud7ff", "µs", " ms", " / ", "tokens", "T/s", "|", "=", ":", "%", "\x1b[0m", "\r"),
)


def corpus() -> list[str]:
    """Return every line that the renderers print, and every needle and signature."""
    rng = random.Random(11)
    lines = []
    for form in FORMATS:
        for _ in range(8):
            numbers = Numbers(
                prompt=rng.randrange(40, 99_999),
                output=rng.randrange(3, 9_999),
                prefill_cs=rng.randrange(100, 10**7),
                decode_cs=rng.randrange(100, 10**7),
                rate=rng.randrange(1, 10**5),
            )
            lines += form.render(numbers).splitlines()
    lines += [one for parser in PARSERS for one in parser.signatures]
    return lines + [needle.decode() for needle in scan.NEEDLES]


def other_digit(rng: random.Random, one: str) -> str:
    return str(rng.randrange(10)) if one.isdigit() and rng.random() < 0.3 else one


def mutated(rng: random.Random, lines: list[str]) -> str:
    """Return one line after a few edits, or a random one."""
    if rng.random() < 0.05:
        limits = [rng.choice((127, 0x2FF)) for _ in range(rng.randrange(120))]
        return "".join(chr(rng.randrange(1, limit)) for limit in limits)
    text = rng.choice(lines)
    for _ in range(rng.randrange(1, 5)):
        at, to = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        kind = rng.randrange(7)
        if kind == 0:
            text = text[:at] + text[to:]
        elif kind == 1:
            text = text[:at] + rng.choice(WORDS) + text[at:]
        elif kind == 2:
            text = text[:at] + text[at:to] * rng.randrange(1, 4) + text[to:]
        elif kind == 3:
            text = text[:at] + rng.choice(lines)[at:]
        elif kind == 4:
            text = text[:at]
        elif kind == 5:
            text = "".join(other_digit(rng, one) for one in text)
        else:
            text = text[at:] + text[:at]
        text = text[:2_000]
    return text


def numbers_of(item: Any) -> Iterator[tuple[str, float]]:
    for field in fields(item):
        value = getattr(item, field.name)
        if is_dataclass(value):
            yield from numbers_of(value)
        elif isinstance(value, dict):
            yield from ((field.name, v) for v in value.values() if isinstance(v, int | float))
        elif isinstance(value, int | float):
            yield field.name, value


def assert_sane(item: Any) -> None:
    if isinstance(item, Fact):
        assert item.name in FACTS
    else:
        assert set(item.meter.flags) <= set(FLAGS) or item.engine == "twostroke"
    for name, value in numbers_of(item):
        assert math.isfinite(value), item
        signed = isinstance(item, Fact) and item.name in SIGNED_FACTS
        assert value >= 0 or signed or name == "t_arrival_s", item


def held(parser: Any) -> int:
    tables = [value for value in vars(parser).values() if isinstance(value, dict | set)]
    tables += [value._open for value in vars(parser).values() if hasattr(value, "_open")]
    return sum(len(table) for table in tables)


def fuzz(parser: Any, count: int, seed: int) -> None:
    rng, lines = random.Random(seed), corpus()
    own = [one for one in lines if any(word in one for word in parser.signatures)] or lines
    for done in range(0, count, 1_000):
        batch = [mutated(rng, own if rng.random() < 0.8 else lines) for _ in range(1_000)]
        start = time.process_time()
        for number, text in enumerate(batch, done):
            source = f"s{rng.randrange(400)} | " if rng.random() < 0.2 else ""
            for item in parser.feed(unwrap(source + text, number, "f")) or []:
                assert_sane(item)
        assert time.process_time() - start < MAX_SECONDS_PER_THOUSAND
        assert held(parser) <= MAX_OPEN
    for item in parser.flush():
        assert_sane(item)
    assert held(parser) <= MAX_OPEN


@pytest.mark.parametrize("parser", PARSERS, ids=lambda p: f"{p.engine}-{type(p).__name__}")
def test_mutated_lines_never_break_a_parser(parser):
    fuzz(parser, 2_000, seed=5)


@pytest.mark.soak
@pytest.mark.parametrize("parser", PARSERS, ids=lambda p: f"{p.engine}-{type(p).__name__}")
def test_many_mutated_lines_never_break_a_parser(parser):
    fuzz(parser, 200_000, seed=6)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda p: type(p).__name__)
def test_no_pattern_backtracks_out_of_bounds(parser):
    for signature in parser.signatures:
        for fill in (" ", "1.", "a ", "(", "1,", "x=1 ", "1h", "{"):
            start = time.process_time()
            parser.feed(unwrap((signature + fill * 8_000)[:8_000], 1, None))
            parser.feed(unwrap((signature + fill) * (8_000 // len(signature + fill)), 1, None))
            assert time.process_time() - start < 0.5, (signature, fill)


def scan_fuzz(count: int, seed: int) -> None:
    rng, lines, scanner = random.Random(seed), corpus(), LogScanner()
    for _ in range(0, count, 2_000):
        ends = ("\n", "\n", "\n", "\r\n", "")
        text = "".join(mutated(rng, lines) + rng.choice(ends) for _ in range(2_000))
        data = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.5:
            spot = rng.randrange(len(data))
            data = data[:spot] + rng.randbytes(64) + data[spot:]
        before = scanner.num_lines
        for item in scanner.scan(data):
            assert_sane(item)
        ends_open = not data.endswith(b"\n")
        assert scanner.num_lines - before == data.count(b"\n") + ends_open
        assert sum(scanner.unknown.values()) <= scanner.num_lines


def test_mutated_logs_never_break_the_scanner():
    scan_fuzz(4_000, seed=7)


@pytest.mark.soak
def test_many_mutated_logs_never_break_the_scanner():
    scan_fuzz(200_000, seed=8)
