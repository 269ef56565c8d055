"""Blocks from the pieces that providers write: text, media, tool calls, reasoning, data."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from runlane._transcripts.report import Piece, Report, clean, cut, plain_json
from runlane.v1 import message_pb2

INLINE_BYTES_MAX: Final = 256 * 1024
NAME_BYTES_MAX: Final = 255
_KINDS = {
    "image": message_pb2.Media.KIND_IMAGE,
    "audio": message_pb2.Media.KIND_AUDIO,
    "video": message_pb2.Media.KIND_VIDEO,
}
_URI_BYTES_MAX = 4096
_PROVIDER_BYTES_MAX = 65536
_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_TEXTS = {"text", "input_text", "output_text", "refusal"}


class Part(NamedTuple):
    """A block, and in what other form than it was given; empty: in none.

    It is counted once the block is in a message.
    """

    block: message_pb2.Block
    changed: str = ""


def text_part(text: str, report: Report, changed: str = "") -> Part:
    """Returns a text."""
    return Part(message_pb2.Block(text=clean(text, report)), changed)


def data_part(value: Any, report: Report) -> Part:
    """Returns what has no block of its own, as JSON."""
    text = plain_json(value, report)
    kind = value.get("type") if isinstance(value, Mapping) else None
    data = message_pb2.Data(content_type="application/json", json=text)
    named = kind[:60] if isinstance(kind, str) and kind else "piece"
    return Part(message_pb2.Block(data=data), f"{named} (kept as a data block)")


def call_part(call_id: str, name: str, arguments: Any, report: Report) -> Part:
    """Returns a tool call; arguments are text as the model wrote it, or what that meant."""
    use = message_pb2.ToolUse(tool_call_id=clean(call_id, report))
    use.name = cut(name, NAME_BYTES_MAX, "tool name", report) or "unknown"
    changed = ""
    if isinstance(arguments, str):
        text = clean(arguments, report)
        if _is_object(text or "{}"):
            use.arguments_json = text or "{}"
        else:
            use.arguments_text = text
            changed = "malformed tool arguments (kept as text)"
    elif arguments is None or isinstance(arguments, Mapping):
        use.arguments_json = plain_json(arguments or {}, report)
    else:
        use.arguments_text = plain_json(arguments, report)
        changed = "malformed tool arguments (kept as text)"
    return Part(message_pb2.Block(tool_use=use), changed)


def _is_object(text: str) -> bool:
    """Tells whether a server takes a text as a JSON object."""
    try:
        value = json.loads(text, parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not _NUL_ESCAPE.search(text)


def _no_number(name: str) -> None:
    raise ValueError(name)


def reasoning_part(text: str, report: Report, *, sealed: Mapping[str, Any] | None = None) -> Part:
    """Returns reasoning, with what its provider seals."""
    block = message_pb2.Block(
        reasoning=message_pb2.Reasoning(text=clean(text, report), redacted=not text)
    )
    if sealed:
        provider = plain_json(sealed, report)
        if len(provider.encode()) <= _PROVIDER_BYTES_MAX:
            block.provider_json = provider
        else:
            report.drop("sealed reasoning over 64 KiB")
    return Part(block)


def media_part(media_type: str, data: str, report: Report) -> Part:
    """Returns media from base64, or a note where it is too large to be kept inline."""
    kind = media_type.partition("/")[0]
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not raw:
        report.drop("media that is no base64, or empty")
        return text_part(f"[{media_type[:60]}, left out: no base64]", report)
    if len(raw) > INLINE_BYTES_MAX:
        report.drop("media over 256 KiB")
        return text_part(f"[{media_type[:60]}, {len(raw)} bytes, left out]", report)
    media = message_pb2.Media(
        kind=_KINDS.get(kind, message_pb2.Media.KIND_FILE),
        media_type=cut(media_type, NAME_BYTES_MAX, "media type", report),
        size_bytes=len(raw),
        inline_data=raw,
    )
    return Part(message_pb2.Block(media=media))


def link_part(url: str, kind: str, report: Report) -> Part:
    """Returns media from a URL, of which a data: one holds the bytes."""
    head, comma, data = url.partition(",")
    if head.startswith("data:") and comma and head.endswith(";base64"):
        return media_part(head[5:-7] or f"{kind}/*", data, report)
    uri = clean(url, report)
    if not uri or len(uri.encode()) > _URI_BYTES_MAX:
        report.drop("media URL over 4 KiB, or empty")
        return text_part(f"[{kind}, left out]", report)
    return Part(
        message_pb2.Block(
            media=message_pb2.Media(kind=_KINDS.get(kind, message_pb2.Media.KIND_FILE), uri=uri)
        )
    )


def content_part(part: Piece, report: Report) -> Part:
    """Returns a part of a content, of chat completions, the Responses API or messages."""
    kind = part.text("type")
    if kind in _TEXTS:
        return text_part(part.text("text", "refusal"), report)
    if kind in {"image_url", "input_image"}:
        inner = part.piece("image_url")
        url = inner.text("url") if inner is not None else part.text("image_url")
        if url:
            return link_part(url, "image", report)
    if kind == "input_audio" and (audio := part.piece("input_audio")) is not None:
        return media_part(f"audio/{audio.text('format') or '*'}", audio.text("data"), report)
    if kind == "image" and (source := part.piece("source")) is not None:
        if source.says("type", "base64"):
            return media_part(source.text("media_type") or "image/*", source.text("data"), report)
        if url := source.text("url"):
            source.says("type", "url")
            return link_part(url, "image", report)
    return data_part(part.whole(), report)
