"""Blocks from the pieces that providers write: text, media, tool calls, reasoning, data."""

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from runlane._transcripts.draft import INLINE_BYTES_MAX, Report, clean
from runlane.v1 import message_pb2

_KINDS = {
    "image": message_pb2.Media.KIND_IMAGE,
    "audio": message_pb2.Media.KIND_AUDIO,
    "video": message_pb2.Media.KIND_VIDEO,
}
_URI_BYTES_MAX = 4096
_PROVIDER_BYTES_MAX = 65536


def text_block(text: str, report: Report) -> message_pb2.Block:
    """Returns a block of text."""
    return message_pb2.Block(text=clean(text, report))


def data_block(value: Any, report: Report) -> message_pb2.Block:
    """Returns a block that keeps a piece of a kind that has no block of its own, as JSON."""
    text = clean(json.dumps(value, ensure_ascii=False, default=repr), report).replace("\\u0000", "")
    kind = value.get("type", "piece") if isinstance(value, Mapping) else "piece"
    report.changed[f"{kind} (kept as a data block)"] += 1
    return message_pb2.Block(data=message_pb2.Data(content_type="application/json", json=text))


def call_block(call_id: str, name: str, arguments: Any, report: Report) -> message_pb2.Block:
    """Returns a tool call; arguments are text as the model wrote it, or what that meant."""
    use = message_pb2.ToolUse(tool_call_id=clean(call_id, report), name=clean(name, report))
    if isinstance(arguments, str):
        text = clean(arguments, report)
        try:
            whole = isinstance(json.loads(text or "{}"), dict)
        except (ValueError, RecursionError):
            whole = False
        if whole and "\\u0000" not in text:
            use.arguments_json = text or "{}"
        else:
            use.arguments_text = text
            report.changed["malformed tool arguments (kept as text)"] += 1
    else:
        text = json.dumps(
            arguments if arguments is not None else {}, ensure_ascii=False, default=repr
        )
        use.arguments_json = clean(text, report).replace("\\u0000", "")
    return message_pb2.Block(tool_use=use)


def reasoning_block(
    text: str, report: Report, *, sealed: Mapping[str, Any] | None = None
) -> message_pb2.Block:
    """Returns reasoning, with what its provider seals."""
    block = message_pb2.Block(
        reasoning=message_pb2.Reasoning(text=clean(text, report), redacted=not text)
    )
    if sealed:
        provider = clean(json.dumps(sealed, ensure_ascii=False, default=repr), report)
        if len(provider.encode()) <= _PROVIDER_BYTES_MAX:
            block.provider_json = provider
        else:
            report.dropped["sealed reasoning over 64 KiB"] += 1
    report.kept["reasoning"] += 1
    return block


def media_block(
    media_type: str, data: str, report: Report, *, filename: str = ""
) -> message_pb2.Block:
    """Returns media from base64, or a note where it is too large to be kept inline."""
    kind = media_type.partition("/")[0]
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        report.dropped["media that is no base64"] += 1
        return message_pb2.Block(text=f"[{media_type}, left out: no base64]")
    if not 0 < len(raw) <= INLINE_BYTES_MAX:
        report.dropped["media over 256 KiB"] += 1
        return message_pb2.Block(text=f"[{media_type}, {len(raw)} bytes, left out]")
    report.kept["media"] += 1
    return message_pb2.Block(
        media=message_pb2.Media(
            kind=_KINDS.get(kind, message_pb2.Media.KIND_FILE),
            media_type=clean(media_type, report)[:60],
            filename=clean(filename, report)[:60],
            size_bytes=len(raw),
            inline_data=raw,
        )
    )


def link_block(url: str, kind: str, report: Report, *, filename: str = "") -> message_pb2.Block:
    """Returns media from a URL, of which a data: one holds the bytes."""
    head, comma, data = url.partition(",")
    if head.startswith("data:") and comma and head.endswith(";base64"):
        return media_block(head[5:-7] or f"{kind}/*", data, report, filename=filename)
    uri = clean(url, report)
    if not uri or len(uri.encode()) > _URI_BYTES_MAX:
        report.dropped["media URL over 4 KiB, or empty"] += 1
        return message_pb2.Block(text=f"[{kind}, left out]")
    report.kept["media"] += 1
    media = message_pb2.Media(kind=_KINDS.get(kind, message_pb2.Media.KIND_FILE), uri=uri)
    media.filename = clean(filename, report)[:60]
    return message_pb2.Block(media=media)


def word(value: Any) -> str:
    """Returns what names a kind or a role; empty where it is no text."""
    return value if isinstance(value, str) else ""


def time_of(value: Any) -> int | None:
    """Returns microseconds of an ISO time or of seconds; None: it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float) and 0 < value < 4_000_000_000:
        return int(value * 1_000_000)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = datetime.fromisoformat(f"{value}+00:00")
        return int(moment.timestamp() * 1_000_000)
    return None
