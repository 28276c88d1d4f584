"""What this project saved earlier, read back: JSON whose every number is finite and whose every value has its type."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.runtime.files import SAVED, read_small

LARGEST = 1 << 63  # what a count of nanoseconds, bytes or calls is below
LARGEST_FLOAT = 1e30

T = TypeVar("T")


class _Wrong(Exception):
    """Path and what is wrong there."""


def load_json(path: Path) -> Any:
    """The JSON of a file.

    Raises:
        BadUsage: it cannot be read, is no JSON, or holds a number that none of ours is.
    """
    text = read_small(path, SAVED)
    try:
        return json.loads(text, parse_constant=_no_number, parse_int=_integer, parse_float=_float)
    except RecursionError:
        raise BadUsage(f"{path}: not JSON of this project: nested too deep") from None
    except ValueError as error:
        raise BadUsage(f"{path}: not JSON: {str(error)[:120]}") from None


EXACT = 2.0**53  # below it each whole number is a float of its own


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -LARGEST < int(digits) < LARGEST:
        raise ValueError(f"{digits[:24]}…: a number beyond 64 bits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not abs(value) < LARGEST_FLOAT:
        raise ValueError(f"{digits[:24]}: a number out of all range")
    return int(value) if value.is_integer() and abs(value) < EXACT else value  # 6.0 is an integer to the schema


# ---- values of our own classes ---------------------------------------------------------------------------------------


def decoded(plain: object, kind: type[T], source: str) -> T:
    """The value of a dataclass from what `dataclasses.asdict` and JSON made of it.

    Raises:
        BadUsage: a field is missing, unknown or of another type.
    """
    try:
        value: T = _value(plain, kind, "")
    except _Wrong as error:
        raise BadUsage(f"{source}: {error}") from None
    return value


def _value(plain: Any, kind: Any, at: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if plain is None and types.NoneType in inner else _value(plain, inner[0], at)
    if dataclasses.is_dataclass(kind):
        return _dataclass(plain, kind, at)
    if origin is dict:
        _is(isinstance(plain, dict), at, "a table", plain)
        return {key: _value(value, inner[1], f"{at}.{key}") for key, value in plain.items()}
    if origin is tuple:
        _is(isinstance(plain, list), at, "a list", plain)
        kinds = [inner[0]] * len(plain) if inner[-1] is ... else list(inner)
        _is(len(kinds) == len(plain), at, f"a list of {len(kinds)}", plain)
        return tuple(_value(value, one, f"{at}[{i}]") for i, (value, one) in enumerate(zip(plain, kinds, strict=True)))
    if kind is float:
        _is(isinstance(plain, (int, float)) and not isinstance(plain, bool), at, "a number", plain)
        return float(plain)
    _is(isinstance(plain, kind) and (kind is bool or not isinstance(plain, bool)), at, NAMES.get(kind, kind), plain)
    return plain


NAMES = {int: "a whole number", str: "a text", bool: "true or false"}


def _dataclass(plain: Any, kind: Any, at: str) -> Any:
    _is(isinstance(plain, dict), at, "a table", plain)
    fields, hints = {field.name: field for field in dataclasses.fields(kind)}, _hints(kind)
    for key in plain:
        if key not in fields:
            raise _Wrong(f"{at}.{key}: unknown".lstrip("."))
    for name, field in fields.items():
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in plain and not has_default:
            raise _Wrong(f"{at}.{name}: missing".lstrip("."))
    return kind(**{key: _value(value, hints[key], f"{at}.{key}") for key, value in plain.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _is(right: bool, at: str, expected: object, found: object) -> None:
    if not right:
        raise _Wrong(f"{at.lstrip('.') or 'the whole'}: {repr(found)[:60]} is not {expected}")


# ---- JSON Schema, as far as ours goes --------------------------------------------------------------------------------


def first_violation(document: object, schema: Mapping[str, Any]) -> str:
    """Where a document differs from its JSON Schema first, and how; empty where it does not.

    Knows the keywords of the schemas in this package; a test holds it to what `jsonschema` says.
    """
    try:
        _check(document, schema, schema, "")
    except _Wrong as error:
        return str(error)
    return ""


TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def _check(value: Any, schema: Any, root: Mapping[str, Any], at: str) -> None:
    if isinstance(schema, bool):
        _is(schema, at, "allowed", value)
        return
    if "$ref" in schema:
        _check(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    if "type" in schema:
        wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        _is(any(TYPES[name](value) for name in wanted), at, " or ".join(wanted), value)
    if "const" in schema:
        _is(value == schema["const"], at, repr(schema["const"]), value)
    if "enum" in schema:
        _is(any(value == one and type(value) is type(one) for one in schema["enum"]), at, f"of {schema['enum']}", value)
    if "oneOf" in schema:
        fitting = sum(not _differs(value, one, root, at) for one in schema["oneOf"])
        _is(fitting == 1, at, "one of what may stand here", value)
    if TYPES["number"](value):
        _is(value >= schema.get("minimum", value), at, f"at least {schema.get('minimum')}", value)
        _is(value <= schema.get("maximum", value), at, f"at most {schema.get('maximum')}", value)
    elif isinstance(value, str) and "pattern" in schema:
        _is(re.search(schema["pattern"], value) is not None, at, f"of the form {schema['pattern']}", value)
    elif isinstance(value, list):
        _check_list(value, schema, root, at)
    elif isinstance(value, dict):
        _check_table(value, schema, root, at)


def _differs(value: Any, schema: Any, root: Mapping[str, Any], at: str) -> bool:
    try:
        _check(value, schema, root, at)
    except _Wrong:
        return True
    return False


def _check_list(value: list[Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str) -> None:
    _is(len(value) >= schema.get("minItems", 0), at, f"a list of at least {schema.get('minItems')}", value)
    _is(len(value) <= schema.get("maxItems", len(value)), at, f"a list of at most {schema.get('maxItems')}", value)
    first = schema.get("prefixItems", ())
    for i, one in enumerate(value):
        if i < len(first) or "items" in schema:
            _check(one, first[i] if i < len(first) else schema["items"], root, f"{at}[{i}]")


def _check_table(value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str) -> None:
    for key in schema.get("required", ()):
        if key not in value:
            raise _Wrong(f"{at}.{key}: missing".lstrip("."))
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key, one in value.items():
        _check(one, known.get(key, others), root, f"{at}.{key}")
