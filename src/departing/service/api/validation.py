"""Sentences about invalid requests: the field, its value and what is accepted, from the types of the request."""

import json
import re
from typing import Any

import msgspec
from msgspec import inspect

MAX_VALUE = 60  # characters of a value that a sentence repeats
MAX_BODY = 1 << 16  # bytes that are decoded again for a sentence, in a few milliseconds
_WHERE = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (?P<problem>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_PATH = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_MISSING = object()


def explain(error: msgspec.ValidationError, body: bytes, request: Any) -> str:
    """Return a sentence without its end about a body that does not match the type `request`.

    >>> def sentence(body):
    ...     try:
    ...         msgspec.json.decode(body, type=dict[str, int])
    ...     except msgspec.ValidationError as error:
    ...         return explain(error, body, dict[str, int])
    >>> sentence(b"[1]")
    'the body is [1]; expected an object'
    """
    where = _WHERE.fullmatch(str(error))
    assert where is not None  # it matches every text
    path, field = where["path"] or "", _FIELD.fullmatch(where["problem"])
    if len(body) > MAX_BODY:
        return str(error)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # such as a number that no type can hold
        return str(error)
    expected, rest = inspect.type_info(request), path
    while rest:
        step = _PATH.match(rest)
        if rest == "[...]" and isinstance(value, dict):  # a value of some key
            path, expected, value = _wrong_value(path.removesuffix(rest), expected, value)
            break
        expected, value = _inside(expected, step), _value_inside(value, step)
        if step is None or expected is None or value is _MISSING:  # such as a value of any type
            return str(error)
        rest = rest[step.end() :]
    name = path.removeprefix(".")
    if field is not None:
        inner = f"{name}.{field['name']}" if name else field["name"]
        struct = _struct(expected)
        if struct is None:
            return str(error)
        if field["problem"] == "contains unknown":
            return f"{inner:.{MAX_VALUE}} is an unknown field; expected only {_fields(struct)}"
        types = {each.encode_name: each.type for each in struct.fields}
        return f"{inner} is missing; expected {accepted(types[field['name']])}"
    if not where["problem"].startswith(("Expected", "Invalid")):  # a rule of the service
        return str(error)
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"
    return f"{name or 'the body'} is {text}; expected {accepted(expected)}"


def accepted(expected: inspect.Type) -> str:
    """Return the values that a type accepts, in the terms of JSON.

    >>> accepted(inspect.type_info(float | None))
    'a number or null'
    """
    match expected:
        case inspect.Metadata():
            unit = (expected.extra or {}).get("unit")
            text = accepted(expected.type)
            return text if unit is None else text.replace("a number", f"a number of {unit}", 1)
        case inspect.UnionType():
            return " or ".join(map(accepted, expected.types))
        case inspect.LiteralType():
            values = [json.dumps(value) for value in expected.values]
            return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
        case inspect.StrType():
            blank = ", not only white space" if expected.pattern == r"\S" else ""
            return f"a string{_length(expected, 'characters')}{blank}"
        case inspect.IntType():
            return f"an integer{_range(expected)}"
        case inspect.FloatType():
            return f"a number{_range(expected)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
        case inspect.ListType():
            return f"a list{_length(expected, 'items')}"
        case inspect.StructType():
            return f"an object with the fields {_fields(expected)}"
        case _:
            return "an object"


def _length(expected: inspect.StrType | inspect.ListType, unit: str) -> str:
    least, most = expected.min_length or 0, expected.max_length
    if most is not None:
        return f" of {least} to {most:,} {unit}" if least else f" of at most {most:,} {unit}"
    return f" of at least {least} {unit}" if least else ""


def _range(expected: inspect.IntType | inspect.FloatType) -> str:
    bounds = (("≥", expected.ge), (">", expected.gt), ("≤", expected.le), ("<", expected.lt))
    texts = [f"{sign} {bound:,.{0 if bound == int(bound) else 6}f}" for sign, bound in bounds if bound is not None]
    return f" {' and '.join(texts)}" if texts else ""


def _fields(struct: inspect.StructType) -> str:
    return ", ".join(field.encode_name for field in struct.fields)


def _parts(expected: inspect.Type) -> list[inspect.Type]:
    """Return the types that a value may have."""
    match expected:
        case inspect.Metadata():
            return _parts(expected.type)
        case inspect.UnionType():
            return [part for each in expected.types for part in _parts(each)]
        case _:
            return [expected]


def _struct(expected: inspect.Type) -> inspect.StructType | None:
    return next((part for part in _parts(expected) if isinstance(part, inspect.StructType)), None)


def _inside(expected: inspect.Type, step: re.Match[str] | None) -> Any:
    """Return the type of a field or an item; None if it is not known."""
    if step is None:
        return None
    if step[1] is None:
        return next((part.item_type for part in _parts(expected) if isinstance(part, inspect.ListType)), None)
    struct = _struct(expected)
    fields = () if struct is None else struct.fields
    return next((field.type for field in fields if field.encode_name == step[1]), None)


def _wrong_value(path: str, expected: Any, value: dict[str, Any]) -> tuple[str, Any, Any]:
    """Return the path, the type and the value of the first wrong value of an object with values of one type."""
    types = [part.value_type for part in _parts(expected) if isinstance(part, inspect.DictType)]
    texts = [part for each in types for part in _parts(each) if isinstance(part, inspect.StrType)]
    for key, each in value.items():
        too_long = isinstance(each, str) and texts and len(each) > (texts[0].max_length or len(each))
        if types and (too_long or not isinstance(each, str | None)):
            return f"{path}.{key}", types[0], each
    return path, expected, value


def _value_inside(value: Any, step: re.Match[str] | None) -> Any:
    try:
        return _MISSING if step is None else value[step[1] if step[1] is not None else int(step[2])]
    except (KeyError, IndexError, TypeError):
        return _MISSING
