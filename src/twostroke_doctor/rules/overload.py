"""A benchmark that sends more than the server completes: its first tokens measure a queue."""

from __future__ import annotations

from collections.abc import Mapping

_OVERLOAD = 1.05  # offered over completed rate
_STARVED = 10.0  # time to the first token over the time that its prompt takes at the run's rate
_MANY_WAIT = 64  # requests before their first token at once

Facts = Mapping[str, float | str]


def overload_text(facts: Facts) -> str | None:
    """Say how the averages of a benchmark prove a queue, None where they do not."""
    return _arrivals_exceed(facts) or _first_token_is_late(facts)


def _number(facts: Facts, name: str) -> float | None:
    value = facts.get(name)
    return value if isinstance(value, float) else None


def _arrivals_exceed(facts: Facts) -> str | None:
    count, offered = _number(facts, "successful_requests"), _number(facts, "request_rate")
    if facts.get("request_rate") == "inf" and count != 1:
        many = f"{count:.0f} requests" if count is not None else "all requests"
        return f"{many} were sent at once: the time to the first token is their queue"
    done = _completed_per_s(facts)
    if offered is None or done is None or offered <= _OVERLOAD * done:
        return None
    return (
        f"{offered:g} requests a second arrive and {done:g} are completed: the queue grows, "
        "and the time to the first token with it"
    )


def _completed_per_s(facts: Facts) -> float | None:
    """Return requests completed a second, computed rather than printed where possible."""
    count, seconds = _number(facts, "successful_requests"), _number(facts, "duration_s")
    if count is not None and seconds is not None and seconds > 0:
        return count / seconds
    return _number(facts, "requests_per_s")


def _first_token_is_late(facts: Facts) -> str | None:
    """The first token takes far longer than its prompt does at the rate of the whole run."""
    ttft_s, tokens = _number(facts, "mean_ttft_s"), _number(facts, "input_tokens")
    count, seconds = _number(facts, "successful_requests"), _number(facts, "duration_s")
    if not (ttft_s and tokens and count and seconds):
        return _many_wait(facts)
    prompt_s = (tokens / count) / (tokens / seconds)
    if ttft_s < _STARVED * prompt_s:
        return None
    return (
        f"the first token takes {ttft_s:.1f} s, though the server takes in such a prompt every "
        f"{prompt_s:.2f} s: by Little's law {ttft_s / prompt_s:.0f} requests wait at once"
    )


def _many_wait(facts: Facts) -> str | None:
    rate, ttft = _number(facts, "request_rate"), _number(facts, "mean_ttft_s")
    if rate is None or ttft is None or rate * ttft < _MANY_WAIT:
        return None
    return (
        f"{rate:g} requests a second, each {ttft:g} s before its first token: by Little's law "
        f"{rate * ttft:.0f} wait at once"
    )
