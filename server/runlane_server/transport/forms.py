"""JSON Schemas of forms, and whether JSON fits them.

Schemas come from executors and answers from people: neither may hold up the server.
Nothing is ever fetched; what a check may cost is counted; regular expressions run in
an engine whose time is linear. Both checks belong into a thread.
"""

import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import Annotated, Any

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError, ValidationError
from pydantic import StringConstraints, TypeAdapter
from pydantic import ValidationError as Mismatch
from pydantic_core import SchemaError as PatternError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from runlane_server.core.errors import invalid
from runlane_server.transport.interactions import unfit
from runlane_server.transport.values import check_json

SCHEMA_DEPTH_MAX = 32
PATTERN_CHARACTERS_MAX = 1024
COST_MAX = 200_000

_REFERENCES = ("$ref", "$dynamicRef")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_CHARACTERS_PER_COST = 64
_REFERENCE_COST = 10

_left: ContextVar[list[int]] = ContextVar("left")

Errors = Iterator[ValidationError] | None
Keyword = Callable[[Any, Any, Any, Any], Errors]


class _TooCostlyError(Exception):
    """A check went beyond what one may cost."""


def check_schema(text: str, field: str) -> None:
    """Refuses what is no JSON Schema, or none that answers can be held to."""
    schema = check_json(text, field)
    _check_depth(schema, field)
    try:
        # Formats of a schema are patterns and references, which are tested below.
        _schemas.check_schema(schema, format_checker=None)
        _check_parts(schema, field)
    except SchemaError as error:
        raise invalid(field, f"is no valid JSON Schema at `{_path(error)}`") from None
    except (Unresolvable, ValueError):
        raise invalid(field, "refers to what is no schema in it") from None
    except RecursionError:
        raise invalid(field, "is nested too deep") from None


def check_form(schema_text: str, text: str, field: str) -> None:
    """Refuses JSON that does not fit a schema that was checked."""
    schema = check_json(schema_text, field)
    value = check_json(text, field)
    if isinstance(schema, dict):
        schema.pop("$schema", None)
    registry: Registry[Any] = Registry()
    try:
        _spend_from(COST_MAX)
        error = next(_Answers(schema, registry=registry).iter_errors(value), None)
    except (_TooCostlyError, RecursionError):
        raise unfit(field, "takes too long to be held to the form's schema") from None
    if error is not None:
        raise unfit(field, f"at `{_path(error)}` does not fit `{error.validator}` of the schema")


def _path(error: ValidationError | SchemaError) -> str:
    return "/" + "/".join(str(part) for part in error.absolute_path)


def _check_depth(schema: Any, field: str) -> None:
    level = [schema]
    for _ in range(SCHEMA_DEPTH_MAX):
        level = [
            part
            for one in level
            if isinstance(one, (dict, list))
            for part in (one.values() if isinstance(one, dict) else one)
        ]
    if level:
        raise invalid(field, f"must be nested at most {SCHEMA_DEPTH_MAX} levels deep")


def _check_parts(schema: Any, field: str) -> None:
    """Checks each schema within a schema: its dialect, references and patterns."""
    root = DRAFT202012.create_resource(schema)
    registry: Registry[Any] = Registry()
    has_patterns = has_unevaluated = False
    schemas: set[int] = set()
    referred: list[Any] = []
    parts = [(root, registry.resolver_with_root(root))]
    while parts:
        part, resolver = parts.pop()
        parts += [(one, resolver.in_subresource(one)) for one in part.subresources()]
        found = part.contents
        if not isinstance(found, dict):
            continue
        schemas.add(id(found))
        if found.get("$schema", _DIALECT).rstrip("#") != _DIALECT:
            raise invalid(field, "must be of draft 2020-12")
        if found is not schema and "$schema" in found:
            raise invalid(field, "must have $schema at its top alone")
        referred += [
            resolver.lookup(found[keyword]).contents for keyword in _REFERENCES if keyword in found
        ]
        patterns = list(found.get("patternProperties", ()))
        has_patterns = has_patterns or bool(patterns)
        has_unevaluated = has_unevaluated or "unevaluatedProperties" in found
        if "pattern" in found:
            patterns.append(found["pattern"])
        for pattern in patterns:
            _check_pattern(pattern, field)
    if any(not isinstance(one, bool) and id(one) not in schemas for one in referred):
        raise invalid(field, "refers to what is no schema in it")
    if has_patterns and has_unevaluated:
        raise invalid(field, "must not have both patternProperties and unevaluatedProperties")


def _check_pattern(pattern: str, field: str) -> None:
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise invalid(field, f"must have patterns of at most {PATTERN_CHARACTERS_MAX} characters")
    try:
        _compiled(pattern)
    except PatternError:
        raise invalid(
            field, "must have patterns that compile, without look-around and back-references"
        ) from None


# --- what the keywords cost ------------------------------------------------


def _spend_from(cost: int) -> None:
    _left.set([cost])


def _spend(cost: int) -> None:
    left = _left.get()
    left[0] -= cost
    if left[0] < 0:
        raise _TooCostlyError


def _counted(name: str, keyword: Keyword) -> Keyword:
    base = _REFERENCE_COST if name in _REFERENCES else 1

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
        cost = base
        if isinstance(value, (dict, list)):
            cost += len(value)
        if isinstance(instance, (dict, list)):
            cost += len(instance)
        _spend(cost)
        return keyword(validator, value, instance, schema)

    return check


# --- keywords whose own form would take a time without bound ---------------


@lru_cache(maxsize=32)
def _compiled(pattern: str) -> TypeAdapter[str]:
    return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])


def _matches(pattern: str, text: str) -> bool:
    _spend(1 + len(text) // _CHARACTERS_PER_COST)
    try:
        _compiled(pattern).validate_python(text)
    except Mismatch:
        return False
    return True


def _pattern(_validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(value, instance):
        yield ValidationError("does not match")


def _pattern_properties(
    validator: Any, value: Any, instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, part in value.items():
        for key, held in instance.items():
            if _matches(pattern, key):
                yield from validator.descend(held, part, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, value: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, held in instance.items():
        if key in named or any(_matches(pattern, key) for pattern in patterns):
            continue
        if value is False:
            yield ValidationError("is not allowed")
        else:
            yield from validator.descend(held, value, path=key)


def _unique_items(
    _validator: Any, value: Any, instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    if value and isinstance(instance, list):
        # Not msgspec, whose numbers are bounded.
        seen = {json.dumps(_plain(item), sort_keys=True) for item in instance}
        if len(seen) < len(instance):
            yield ValidationError("is not unique")


def _plain(value: Any) -> Any:
    """Returns a value in which equal numbers are of one type."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


_OWN: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
_KEYWORDS: dict[str, Any] = {**Draft202012Validator.VALIDATORS, **_OWN}
_extend: Any = validators.extend
_schemas: Any = Draft202012Validator
_Answers: Any = _extend(
    Draft202012Validator, {name: _counted(name, one) for name, one in _KEYWORDS.items()}
)
