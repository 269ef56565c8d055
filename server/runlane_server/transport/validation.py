"""The rules that stand in the protos, tested before anything else.

A violation names its field and its rule, never the value.
"""

import re
from collections.abc import Iterable
from typing import Any

import protovalidate
from google.protobuf.message import Message
from runlane.v1 import executor_service_pb2, history_service_pb2, session_service_pb2

from runlane_server.core.errors import Reason, Refused
from runlane_server.transport.content import CONTENT_BYTES_MAX, check_size, content_size

_ALL_VIOLATIONS_BELOW_BYTES = 4096
_SAFE_KEY = re.compile(r"[A-Za-z0-9._/@:-]{1,63}")

_PATTERN = re.compile(r"does not match regex pattern `(?P<pattern>.*)`")
_ID = "a letter or digit, then up to 127 letters, digits and . _ : @ -"
PATTERNS = {
    "^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$": f"is no id: {_ID}",
    "^([A-Za-z0-9][A-Za-z0-9._:@-]{0,127})?$": f"is no id: {_ID}",
    "^[A-Za-z0-9][A-Za-z0-9._:@-]{0,62}$": (
        "is no name: a letter or digit, then up to 62 letters, digits and . _ : @ -"
    ),
    "^[a-z0-9][a-z0-9._/-]{0,62}$": (
        "is no key: a small letter or digit, then up to 62 small letters, digits and . _ / -"
    ),
    "^([*]|[a-z0-9][a-z0-9._-]{0,62})?$": (
        "is no namespace: * or a small letter or digit, then up to 62 small letters, digits "
        "and . _ -"
    ),
    "^([0-9a-f]{64})?$": "is no digest: 64 hexadecimal digits",
}
"""What the patterns of the protos say, in words."""

_collect = protovalidate.Validator().collect_violations


def validate(request: Message, size: int) -> None:
    """Refuses a request that breaks a rule of its proto; `size` is its encoded size."""
    if size > CONTENT_BYTES_MAX:
        for blocks in _contents(request):
            check_size(content_size(blocks))
    if not _collect(request, fail_fast=True):
        return
    # A small request can be made to break thousands of rules: only of a tiny one are all told.
    found = _collect(request, fail_fast=size > _ALL_VIOLATIONS_BELOW_BYTES)
    violations = tuple(_describe(one.proto) for one in found)
    field, rule = violations[0]
    raise Refused(Reason.FIELD_INVALID, f"{field}: {rule}", violations=violations)


def _contents(request: Message) -> Iterable[Any]:
    if isinstance(request, session_service_pb2.SubmitRequest):
        yield request.content
    elif isinstance(request, executor_service_pb2.CommitRequest):
        for operation in request.operations:
            yield operation.commit_model_step.content
            yield operation.commit_tool_results.results
    elif isinstance(request, history_service_pb2.ForkSessionRequest):
        yield request.input.content


def _describe(violation: Any) -> tuple[str, str]:
    """Returns path and rule. A key is shown only where it is not what breaks the rule."""
    path = ""
    for element in violation.field.elements if violation.field else ():
        path += f".{element.field_name}" if path else element.field_name
        subscript = element.subscript
        if subscript is None:
            continue
        safe = not violation.for_key and _SAFE_KEY.fullmatch(str(subscript.value))
        if subscript.field == "index" or safe:
            path += f"[{subscript.value}]"
    rule = violation.message or "breaks its rule"
    if (found := _PATTERN.fullmatch(rule)) and found["pattern"] in PATTERNS:
        rule = PATTERNS[found["pattern"]]
    return path, f"each key: {rule}" if violation.for_key else rule
