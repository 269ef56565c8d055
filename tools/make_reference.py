"""Writes what follows from the protos and the table of deadlines and retries.

- `docs/protocol.md`: the reference of all calls, messages and enums, with their comments.
- `clients/service_config.json`: the table as gRPC's own service config, for languages without
  a client of ours.

Reads the descriptors that `buf build` wrote, with their comments. With `--check` nothing is
written: it is told what is not as it would be.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2 as pb

ROOT = Path(__file__).resolve().parent.parent
DESCRIPTORS = ROOT / "build" / "protocol.binpb"
CALLS = ROOT / "proto" / "calls.json"
REFERENCE = ROOT / "docs" / "protocol.md"
SERVICE_CONFIG = ROOT / "clients" / "service_config.json"

PACKAGE = "runlane.v1"
SERVICES = ("SessionService", "HistoryService", "ExecutorService", "AdminService", "ServerService")
"""The order in which they are told; any other comes after them."""
LONGEST_WAIT = 300
"""Seconds that a wait_duration may ask for."""
ATTEMPTS = 5
"""As many as gRPC allows."""

INTRODUCTION = ROOT / "tools" / "protocol_intro.md"
CALLS_TEXT = ROOT / "tools" / "protocol_calls.md"


class Comments:
    """What the protos say of each thing, by the path that descriptors give it."""

    def __init__(self, file: pb.FileDescriptorProto) -> None:
        """Reads the comments of a file."""
        self._by_path = {
            tuple(place.path): place.leading_comments for place in file.source_code_info.location
        }

    def of(self, *path: int) -> str:
        """Returns the comment of something, as one text of paragraphs."""
        lines = [line.removeprefix(" ") for line in self._by_path.get(path, "").split("\n")]
        return "\n".join(lines).strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _type(field: pb.FieldDescriptorProto, entry: pb.DescriptorProto | None = None) -> str:
    if entry is not None:
        key, value = entry.field
        return f"map of {_type(key)} to {_type(value)}"
    name = field.type_name.removeprefix(".")
    if not name:
        text = pb.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    elif name.startswith(f"{PACKAGE}."):
        local = name.removeprefix(f"{PACKAGE}.")
        text = f"[{local}](#{_anchor(local)})"
    else:
        text = f"`{name}`"
    repeated = field.label == pb.FieldDescriptorProto.LABEL_REPEATED
    return f"{text}, repeated" if repeated else text


def _anchor(name: str) -> str:
    return name.lower().replace(".", "")


def _fields(message: pb.DescriptorProto, comments: Comments, path: tuple[int, ...]) -> list[str]:
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    if not message.field:
        return ["No fields.", ""]
    lines = ["| field | no. | type | what |", "| --- | --- | --- | --- |"]
    for index, field in enumerate(message.field):
        entry = entries.get(field.type_name.rpartition(".")[2])
        marks = []
        if field.proto3_optional:
            marks.append("optional")
        elif field.HasField("oneof_index"):
            marks.append(f"oneof {message.oneof_decl[field.oneof_index].name}")
        kind = ", ".join([_type(field, entry), *marks])
        told = _cell(comments.of(*path, 2, index))
        lines.append(f"| `{field.name}` | {field.number} | {kind} | {told} |")
    return [*lines, ""]


def _enum(
    enum: pb.EnumDescriptorProto, name: str, comments: Comments, path: tuple[int, ...]
) -> Iterator[str]:
    yield from (f"### {name}", "", comments.of(*path), "")
    yield from ("| value | no. | what |", "| --- | --- | --- |")
    for index, value in enumerate(enum.value):
        yield f"| `{value.name}` | {value.number} | {_cell(comments.of(*path, 2, index))} |"
    yield ""


def _message(
    message: pb.DescriptorProto, name: str, comments: Comments, path: tuple[int, ...]
) -> Iterator[str]:
    yield from (f"### {name}", "", comments.of(*path), "")
    yield from _fields(message, comments, path)
    for index, enum in enumerate(message.enum_type):
        yield from _enum(enum, f"{name}.{enum.name}", comments, (*path, 4, index))
    for index, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(nested, f"{name}.{nested.name}", comments, (*path, 3, index))


def _service(
    service: pb.ServiceDescriptorProto, comments: Comments, index: int, rows: dict[str, Any]
) -> Iterator[str]:
    yield from (f"## {service.name}", "", comments.of(6, index), "")
    for number, method in enumerate(service.method):
        asks = _local(method.input_type, stream=method.client_streaming)
        answers = _local(method.output_type, stream=method.server_streaming)
        row = rows[f"{PACKAGE}.{service.name}/{method.name}"]
        reads = method.options.idempotency_level == pb.MethodOptions.NO_SIDE_EFFECTS
        yield from (f"### {service.name}.{method.name}", "", comments.of(6, index, 2, number), "")
        changes = "changes nothing" if reads else "may change something"
        yield f"- takes {asks}, gives {answers}"
        yield f"- {changes}; deadline `{row['deadline']}`, repeat `{row['repeat']}`"
        yield ""


def _local(name: str, *, stream: bool) -> str:
    local = name.removeprefix(f".{PACKAGE}.")
    return f"{'stream of ' if stream else ''}[{local}](#{_anchor(local)})"


def _calls_text(table: dict[str, Any]) -> Iterator[str]:
    def listed(names: list[str]) -> str:
        *others, last = names
        return f"{', '.join(others)} or {last}" if others else last

    again, reopen = table["again"], table["reopen"]
    yield (
        CALLS_TEXT.read_text(encoding="utf-8")
        .format(
            again=listed(again["transport_codes"]),
            service=listed(again["service_codes"]),
            delayed=listed(again["reasons_with_delay"]),
            broken=listed(
                [c for c in reopen["transport_codes"] if c not in again["transport_codes"]]
            ),
            places=listed(reopen["reasons_if_connected"]),
            **{key: value for key, value in table.items() if key.endswith(("seconds", "factor"))},
            **table["backoff"],
        )
        .rstrip("\n")
    )
    for name, row in table["methods"].items():
        beside = {k: v for k, v in row.items() if k not in {"deadline", "repeat"}}
        told = ", ".join(f"`{key}` {value}" for key, value in beside.items())
        short = name.removeprefix(f"{PACKAGE}.").replace("/", ".")
        yield (
            f"| [{short}](#{_anchor(short)}) | `{row['deadline']}` | `{row['repeat']}` | {told} |"
        )
    yield ""


def reference(files: list[pb.FileDescriptorProto], table: dict[str, Any]) -> str:
    """Returns the text of the reference."""
    services: dict[str, list[str]] = {}
    messages: list[str] = []
    for file in files:
        comments = Comments(file)
        for index, service in enumerate(file.service):
            services[service.name] = list(_service(service, comments, index, table["methods"]))
        name = file.name.rpartition("/")[2]
        messages += [f"## {name}", ""]
        for index, message in enumerate(file.message_type):
            messages += _message(message, message.name, comments, (4, index))
        for index, enum in enumerate(file.enum_type):
            messages += _enum(enum, enum.name, comments, (5, index))
    order = sorted(services, key=lambda n: SERVICES.index(n) if n in SERVICES else len(SERVICES))
    contents = [*order, "Deadlines and repeats", *(f.name.rpartition("/")[2] for f in files)]
    lines = [
        INTRODUCTION.read_text(encoding="utf-8").format(package=PACKAGE),
        "",
        *(f"- [{name}](#{_section(name)})" for name in contents),
        "",
        *(line for name in order for line in services[name]),
        *_calls_text(table),
        *messages,
    ]
    text = "\n".join(line.rstrip() for line in lines)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def _section(name: str) -> str:
    return name.lower().replace(".", "").replace(" ", "-")


def service_config(table: dict[str, Any]) -> str:
    """Returns the table as gRPC's service config."""
    backoff = table["backoff"]
    policy = {
        "maxAttempts": ATTEMPTS,
        "initialBackoff": f"{backoff['first_seconds']}s",
        "maxBackoff": f"{backoff['longest_seconds']}s",
        "backoffMultiplier": backoff["multiplier"],
        "retryableStatusCodes": table["again"]["service_codes"],
    }
    seconds = {
        "call": table["call_seconds"],
        "wait": table["call_seconds"] + table["wait_factor"] * LONGEST_WAIT,
        "stream": table["stream_seconds"],
    }
    groups: dict[tuple[float, bool], list[dict[str, str]]] = {}
    for name, row in table["methods"].items():
        service, _, method = name.partition("/")
        safe = row["repeat"] not in {"request_id", "never"}
        group = groups.setdefault((seconds[row["deadline"]], safe), [])
        group.append({"service": service, "method": method})
    configs = [
        {"name": names, "timeout": f"{timeout:g}s", **({"retryPolicy": policy} if safe else {})}
        for (timeout, safe), names in groups.items()
    ]
    return json.dumps({"methodConfig": configs}, indent=2) + "\n"


def _nouns_first(file: pb.FileDescriptorProto) -> tuple[bool, str]:
    return bool(file.service), file.name


def written() -> dict[Path, str]:
    """Returns all files, as they are to be."""
    built = pb.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    files = sorted((file for file in built.file if file.package == PACKAGE), key=_nouns_first)
    table = json.loads(CALLS.read_text(encoding="utf-8"))
    return {REFERENCE: reference(files, table), SERVICE_CONFIG: service_config(table)}


def main() -> None:
    """Writes the files, or checks what is there."""
    stale = []
    for path, text in written().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
    for path in stale:
        print(f"{path.relative_to(ROOT)}: not as it is generated")
    if stale:
        sys.exit("what follows from the protos is not fresh: run make gen")


if __name__ == "__main__":
    main()
