"""The probe before it sends anything: addresses, prompts, limits."""

from __future__ import annotations

import pytest

from twostroke.errors import ConfigError
from twostroke_doctor.probe import ProbeLimits, make_plan
from twostroke_doctor.probe.endpoint import parse_endpoint
from twostroke_doctor.probe.machine import cpu_busy_share

FAST = ProbeLimits(requests=12, seconds=20, tokens=20_000)


def test_the_plan_is_told_before_anything_is_sent():
    plan = make_plan("http://127.0.0.1:9/v1", FAST, prompt_tokens=500)
    lines = list(plan.lines())
    assert "8 generations" in lines[0] and "20 s" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == [step.name for step in plan.steps]


def test_prompts_differ_from_the_first_word_except_the_repeated_one():
    plan = make_plan("http://127.0.0.1:9", FAST)
    prompts = {step.name: plan.prompt_of(step) for step in plan.steps}
    assert prompts["again"] == prompts["unseen"] != prompts["control"]
    heads = [text.split()[0] for name, text in prompts.items() if name != "again"]
    assert len(set(heads)) == len(heads)
    other = make_plan("http://127.0.0.1:9", FAST)
    assert other.prompt_of(other.steps[0]) != prompts["first"], "no cache of an earlier probe"


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://", "http://a b", "http://u:p@host", "http://h:99999999", "http://h\r\nx"],
)
def test_a_text_that_is_no_address_is_refused(url):
    with pytest.raises(ConfigError):
        parse_endpoint(url)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("https://host/v1/", "https://host:443"),
        ("http://[::1]:11434/api/chat", "http://[::1]:11434"),
        ("http://host/llm/v1/chat/completions", "http://host:80/llm"),
    ],
)
def test_addresses_are_read_to_their_root(url, text):
    assert parse_endpoint(url).text == text


def test_limits_that_leave_nothing_are_refused():
    with pytest.raises(ConfigError, match="leave nothing"):
        make_plan("http://127.0.0.1:9", ProbeLimits(requests=3))


def test_the_share_of_a_busy_machine_is_a_share():
    share = cpu_busy_share(0.05)
    assert share is None or 0 <= share <= 1
