"""`@dataclass` for the classes of this package: what the standard library's makes, frozen ones in a third of the time, and
printed shortly.

That one compiles six functions for every frozen class. The command has a hundred of them, and making them took as long as
reading a small trace. Here they share all but their constructor.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING, Any

MOST_PRINTED = 20  # items of a field in what a class prints

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, *, frozen=False):
        """The class as a dataclass; used as `@dataclass` or `@dataclass(frozen=True)`."""
        if cls is not None:
            return dataclasses.dataclass(cls)
        return _frozen if frozen else dataclasses.dataclass


def keep(one: object, name: str, value: object) -> None:
    """Set the cached property of this name to a value that is equal to what it gives, and shares memory or spares work."""
    _check_cached(one, name)
    one.__dict__[name] = value


def forget(one: object, *names: str) -> None:
    """Give up the values of these cached properties; whoever asks again has them worked out again."""
    for name in names:
        _check_cached(one, name)
        one.__dict__.pop(name, None)


def _check_cached(one: object, name: str) -> None:
    if not isinstance(getattr(type(one), name, None), cached_property):
        raise TypeError(f"{type(one).__name__}.{name} is no cached property")


def _frozen(cls: Any) -> Any:
    cls.__setattr__, cls.__delattr__ = _set, _delete
    cls.__eq__, cls.__hash__ = _equal, _hash
    if "__repr__" not in cls.__dict__:
        cls.__repr__ = _represent
    return dataclasses.dataclass(repr=False, eq=False)(cls)


def _set(self: Any, name: str, value: object) -> None:
    """Each field once, as the constructor does."""
    if name in self.__dict__ or name not in self.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    self.__dict__[name] = value


def _delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _represent(self: Any) -> str:
    fields = (f"{f.name}={_shortly(getattr(self, f.name))}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(fields)})"


def _shortly(value: Any) -> str:
    """Of columns and of what is long only what it is: a trace has millions of values."""
    if hasattr(value, "dtype") and hasattr(value, "shape") and value.shape:
        return f"<{value.dtype}, {' × '.join(map(str, value.shape))}>"
    if isinstance(value, (tuple, list, dict, set, frozenset)) and len(value) > MOST_PRINTED:
        return f"<{type(value).__name__} of {len(value):,}>"
    return repr(value)


def _compared(self: Any) -> tuple[object, ...]:
    return tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.compare)


def _equal(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))
