"""The standard `dataclass`, made for a process that must answer soon after it starts.

The standard one writes and compiles up to six methods a class, half a millisecond each time Python
starts: 40 ms for the 80 classes on the way to a first token. Here comparison, hash, repr and
protection are shared functions, and the standard `__init__` is compiled for a class that is made
often. Fields, `replace`, `fields` and `asdict` are the standard library's. Not for classes that
inherit fields, nor for `InitVar`, `order` and `unsafe_hash`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_SLOW_CALLS = 16  # compiling an __init__ costs as much as these calls without


def _fast_dataclass(
    cls: type | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    eq: bool = True,
) -> Any:
    """Make a class a dataclass, as `dataclasses.dataclass` with the same arguments does."""
    if cls is None:
        return partial(_fast_dataclass, frozen=frozen, slots=slots, kw_only=kw_only, eq=eq)
    if any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:]):
        raise TypeError(f"{cls.__name__} inherits fields: use dataclasses.dataclass")
    own = frozenset(cls.__dict__)
    if "__doc__" not in own or cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # else the standard library writes one, slowly
    # dataclass() takes these as keyword arguments of no common type.
    flags: Any = {"init": False, "repr": False, "eq": False, "slots": slots, "kw_only": kw_only}
    made: Any = dataclasses.dataclass(**flags)(cls)
    fields = dataclasses.fields(made)
    methods: dict[str, Any] = {
        "__init__": _Init(made, fields, frozen),
        "__repr__": _repr_of(tuple(f.name for f in fields if f.repr)),
    }
    if eq:
        compared = tuple(f for f in fields if f.compare)
        methods["__eq__"] = _equality_of(_getter([f.name for f in compared]))
        hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
        methods["__hash__"] = _hash_of(_getter(hashed)) if frozen else None
    if frozen:
        methods |= _protection_of(made, frozenset(f.name for f in fields))
        if slots:  # copying goes by setattr otherwise
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    params = made.__dataclass_params__
    params.init, params.repr, params.eq, params.frozen = True, True, eq, frozen
    return made


class _Init:
    """A class's `__init__`: field by field for some calls, then the standard one in its place."""

    def __init__(
        self, cls: type, fields: tuple[dataclasses.Field[Any], ...], is_frozen: bool
    ) -> None:
        self._cls, self._fields, self._is_frozen = cls, fields, is_frozen
        self._positional = tuple(f.name for f in fields if f.init and not f.kw_only)
        self._names = frozenset(f.name for f in fields if f.init)
        self._after = getattr(cls, "__post_init__", None)
        self._calls = 0

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        self._calls += 1
        # From Python 3.13 on, inspect.signature gives the class itself as the instance.
        if instance is None or instance is self._cls or self._calls > _SLOW_CALLS:
            return self._standard().__get__(instance, owner)
        return partial(self._fill, instance)

    def _standard(self) -> Any:
        """Return the standard library's `__init__`, and let the class keep it."""
        twin: Any = dataclasses.make_dataclass(
            self._cls.__name__,
            [(f.name, f.type, f) for f in self._fields],
            namespace={} if self._after is None else {"__post_init__": self._after},
            repr=False,
            eq=False,
            frozen=self._is_frozen,
        )
        init = twin.__init__
        init.__qualname__ = f"{self._cls.__qualname__}.__init__"
        init.__module__ = self._cls.__module__
        type.__setattr__(self._cls, "__init__", init)
        return init

    def _fill(self, instance: object, /, *args: object, **kwargs: object) -> None:
        values = dict(zip(self._positional, args, strict=False))
        is_odd = len(args) > len(self._positional) or not kwargs.keys() <= self._names
        if is_odd or not kwargs.keys().isdisjoint(values):
            return self._standard()(instance, *args, **kwargs)  # type: ignore[no-any-return]
        values |= kwargs
        missing = dataclasses.MISSING
        for f in self._fields:
            name = f.name
            if name in values:
                value = values[name]
            elif f.default_factory is not missing:
                value = f.default_factory()
            elif f.default is not missing:
                value = f.default
            elif f.init:
                return self._standard()(instance, *args, **kwargs)  # type: ignore[no-any-return]
            else:
                continue
            object.__setattr__(instance, name, value)
        if self._after is not None:
            self._after(instance)
        return None


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return the function that takes the named attributes of an object as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda self: ()
    name = names[0]
    return lambda self: (getattr(self, name),)


def _equality_of(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], Any]:
    def __eq__(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash_of(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _repr_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({shown})"

    return __repr__


def _protection_of(cls: type, names: frozenset[str]) -> dict[str, Any]:
    """Return the methods that refuse to change a frozen object."""

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)  # type: ignore[arg-type]

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)  # type: ignore[arg-type]

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _fast_dataclass
