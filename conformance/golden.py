"""What clients of every language depend on, as files: `python -m conformance.golden`.

The files hold what the protos' own checks cannot see, and messages as bytes. They are made from
the code; a test fails where one of them is not what the code says, so that a change of the
contract is seen, and meant.
"""

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from runlane._vendor.buf.validate import validate_pb2
from runlane.v1 import error_reason_pb2
from runlane_server.core.errors import Reason
from runlane_server.core.model import Rules
from runlane_server.settings import Settings
from runlane_server.transport import access
from runlane_server.transport.errors import DOMAIN, TABLE
from runlane_server.transport.limits import FIXED_LIMITS
from runlane_server.transport.requests import LEASE_DURATION_DEFAULT

from conformance.binding import METHODS, to_json
from conformance.golden_wire import CASES

FOLDER: Final = Path(__file__).parent / "golden"
_PAGE: Final = Path(__file__).parents[1] / "docs" / "errors.md"


def wire() -> Any:
    """Messages as bytes and as JSON."""
    return [
        {
            "name": name,
            "message": message.DESCRIPTOR.full_name,
            "binary": base64.b64encode(message.SerializeToString(deterministic=True)).decode(),
            "json": to_json(message),
        }
        for name, message in CASES.items()
    ]


def reasons() -> Any:
    """Each reason: its number, code and metadata keys, and when to try again."""
    page = _PAGE.read_text(encoding="utf-8")
    told = re.findall(r"^\| ([A-Z_]+) \| [A-Z_]+ \|[^|]*\|([^|]*)\|", page, re.MULTILINE)
    keys = {
        reason: re.findall(r"`([a-z_]+)`", re.sub(r"\([^)]*\)", "", cell)) for reason, cell in told
    }
    found = {}
    for reason in Reason:
        row = TABLE[reason]
        found[reason.value] = {
            "number": error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{reason.value}"),
            "code": row.code.name,
            "metadata": keys[reason.value],
            "detail": row.detail.name,
        } | ({"retry_after_ms": row.retry_ms} if row.retry_ms else {})
    return found


def defaults() -> Any:
    """Each limit and default with its unit, as the server has it where nothing is set."""
    rules = Rules()
    limits = [
        *FIXED_LIMITS,
        *((one.name, one.value, one.unit) for one in Settings.model_construct().limits()),
    ]
    limits += [
        ("max_recoveries", rules.max_recoveries, "items"),
        ("lease_seconds_default", LEASE_DURATION_DEFAULT // 1_000_000, "seconds"),
        ("unconfirmed_lease_seconds", rules.unconfirmed_lease // 1_000_000, "seconds"),
        ("backoff_first_milliseconds", rules.backoff_first // 1000, "milliseconds"),
        ("backoff_max_milliseconds", rules.backoff_max // 1000, "milliseconds"),
    ]
    return {name: {"value": value, "unit": unit} for name, value, unit in limits}


def rules() -> Any:
    """The rule of each field that has one."""
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for _, method in METHODS.values():
        _rules_of(method.input_type, found, seen)
    return dict(sorted(found.items()))


def _rules_of(message: Descriptor, found: dict[str, Any], seen: set[str]) -> None:
    if message.full_name in seen or not message.full_name.startswith("runlane."):
        return
    seen.add(message.full_name)
    for oneof in message.oneofs:
        if oneof.GetOptions().HasExtension(validate_pb2.oneof):
            found[oneof.full_name] = _option(oneof.GetOptions().Extensions[validate_pb2.oneof])
    for field in message.fields:
        if field.GetOptions().HasExtension(validate_pb2.field):
            found[_name(field)] = _option(field.GetOptions().Extensions[validate_pb2.field])
        if field.message_type is not None:
            _rules_of(field.message_type, found, seen)


def _name(field: FieldDescriptor) -> str:
    return str(field.full_name)


def _option(option: Message) -> Any:
    # One text: "\x00" is written as JSON writes it, in every version of protobuf.
    return json.loads(json_format.MessageToJson(option, preserving_proto_field_name=True))


def metadata() -> Any:
    """What stands beside calls: the keys of requests and of trailers."""
    return {
        "requests": {
            "authorization": "Bearer, and the secret of an API key or a token",
            access.NAMESPACE_KEY: "the namespace, for a credential that opens more than one",
            "runlane-client": "names the caller in the actor of events",
        },
        "trailers": {
            "grpc-status-details-bin": "google.rpc.Status, in every error of the service",
            "grpc-retry-pushback-ms": "when to try again, in milliseconds",
        },
        "error_domain": DOMAIN,
    }


FILES: Final = {
    "wire": wire,
    "reasons": reasons,
    "defaults": defaults,
    "rules": rules,
    "metadata": metadata,
}
"""What each file holds."""


def text(name: str) -> str:
    """Returns what a file must hold."""
    return json.dumps(FILES[name](), ensure_ascii=False, indent=2, sort_keys=True) + "\n"


def main() -> int:
    """Writes the files."""
    FOLDER.mkdir(exist_ok=True)
    for name in FILES:
        (FOLDER / f"{name}.json").write_text(text(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
