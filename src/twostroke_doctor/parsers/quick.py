"""Records at the cost of open objects: a long log makes hundreds of thousands of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, make_dataclass
from typing import Any, ParamSpec, TypeVar

from twostroke import record
from twostroke_doctor.parsed import Fact

_Fields = ParamSpec("_Fields")
_Made = TypeVar("_Made")


def quick(cls: Callable[_Fields, _Made]) -> Callable[_Fields, _Made]:
    """Return a constructor of a frozen slotted dataclass at the cost of one that is not frozen.

    A frozen `__init__` pays a call of `object.__setattr__` for each field. Here an open class of
    the same slots is filled, and the object then takes its real class.
    """

    def take_class(self: Any) -> None:
        self.__class__ = cls

    made: Any = make_dataclass(
        "Open" + cls.__name__,
        [(one.name, one.type, one) for one in fields(cls)],  # type: ignore[arg-type]
        namespace={"__post_init__": take_class},
        repr=False,
        eq=False,
        slots=True,
        kw_only=True,
    )
    opened: Callable[_Fields, _Made] = made
    return opened


new_record, new_window = quick(record.RequestRecord), quick(record.WindowRecord)
new_phases, new_prompt = quick(record.PhaseTimes), quick(record.PromptTokens)
new_output, new_meter, new_fact = quick(record.OutputTokens), quick(record.Meter), quick(Fact)
