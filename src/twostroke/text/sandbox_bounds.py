"""The bounds of a chat template's rendering: time, steps, and characters made.

Each check comes before the work that it bounds. Knows nothing of the functions that templates call.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2.runtime import Context, Undefined

MAX_SOURCE_CHARS = 1 << 18
MAX_CHARS = 1 << 25  # of any one string that a template makes
MAX_MADE_CHARS = 1 << 28  # of all strings of one rendering
MAX_STEPS = 400_000
MAX_RANGE = 10_000
MAX_VALUES = 200_000  # values inside one list or mapping that is written out
MAX_NUMBER_BITS = 256  # of a product
MAX_BASE, MAX_EXPONENT = 1 << 32, 16  # of a power
DEADLINE_S = 0.8  # CPU time of this thread, so that a busy machine refuses nothing
RUN_VARIABLE = "_run"  # read from the context's parent, which a template cannot change


class BoundExceeded(Exception):
    """A template used up its time, steps or memory."""


class TemplateRun:
    """Steps, characters and time that one rendering has used.

    Its names begin with an underscore and the sandbox refuses attributes of this class, so that no
    template reaches them: the functions of this module do.
    """

    def __init__(self, messages: Iterable[object], now: datetime.datetime) -> None:
        self._places = {id(message): place for place, message in enumerate(messages)}
        self._num_steps = 0
        self._num_chars = 0
        self._now = now
        self._end_s = time.thread_time() + DEADLINE_S
        self._message: int | None = None


def run_of(context: Context) -> TemplateRun:
    """Return the rendering that a context belongs to.

    Raises:
        BoundExceeded: a part of the template that nothing bounds.
    """
    run = context.parent.get(RUN_VARIABLE)
    if not isinstance(run, TemplateRun):
        raise BoundExceeded("a part of the template runs outside its bounds")
    return run


def take_step(run: TemplateRun, item: object = None) -> None:
    """Count one loop turn or call; `item` is the loop's value, maybe a message.

    Raises:
        BoundExceeded: too many steps, or the time is up.
    """
    run._num_steps += 1
    if run._num_steps > MAX_STEPS:
        raise BoundExceeded(f"more than {MAX_STEPS} loop steps")
    if time.thread_time() > run._end_s:
        raise BoundExceeded("its time is up")
    place = run._places.get(id(item))
    if place is not None:
        run._message = place


def count_chars(run: TemplateRun, num_chars: int) -> None:
    """Count a text or list before it is made.

    Raises:
        BoundExceeded: it is too long, or all that was made is too much.
    """
    check_chars(num_chars)
    run._num_chars += num_chars
    if run._num_chars > MAX_MADE_CHARS:
        raise BoundExceeded(f"more than {MAX_MADE_CHARS} characters made")
    take_step(run)


def message_reached(run: TemplateRun) -> int | None:
    """Return the index of the message whose loop turn began last."""
    return run._message


def start_time(run: TemplateRun) -> datetime.datetime:
    """Return the time that the template is told."""
    return run._now


def check_chars(count: int) -> None:
    """Check the length of one text.

    Raises:
        BoundExceeded: longer than MAX_CHARS.
    """
    if count > MAX_CHARS:
        raise BoundExceeded(f"a text longer than {MAX_CHARS} characters")


def check_values(value: object) -> None:
    """Count the values inside lists and mappings, shared ones as often as they would be written.

    Raises:
        BoundExceeded: more than MAX_VALUES, or texts of more than MAX_CHARS.
    """
    waiting, num_values, num_chars = [value], 0, 0
    while waiting:
        found = waiting.pop()
        num_values += 1
        if num_values > MAX_VALUES:
            raise BoundExceeded(f"a value with more than {MAX_VALUES} parts")
        if isinstance(found, str):
            num_chars += len(found)
            check_chars(num_chars)
        elif isinstance(found, Mapping):
            waiting += found.keys()
            waiting += found.values()
        elif isinstance(found, (list, tuple, set, frozenset)):
            waiting += found


def printed(value: object) -> object:
    """Return the text that `{{ value }}` writes; a container is checked before it is written out.

    Raises:
        BoundExceeded: as `check_values`.
    """
    if isinstance(value, (str, int, float, Undefined)) or value is None:
        return value
    check_values(value)
    return str(value)


def product_chars(left: Any, right: Any) -> int:
    """Return the length of `left * right` where it is a text or list, 0 for a number.

    Raises:
        BoundExceeded: a number of more than MAX_NUMBER_BITS.
    """
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_NUMBER_BITS:
            raise BoundExceeded("a number is too large")
        return 0
    for sized, times in ((left, right), (right, left)):
        if isinstance(sized, (str, list, tuple)) and isinstance(times, int):
            return len(sized) * max(times, 0)
    return 0


def check_power(base: Any, exponent: Any) -> None:
    """Check the size of `base ** exponent`.

    Raises:
        BoundExceeded: one of them is too large.
    """
    if not (abs(base) < MAX_BASE and abs(exponent) <= MAX_EXPONENT):
        raise BoundExceeded("a power is too large")
