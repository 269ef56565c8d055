"""One script of requests, good and bad, is answered alike on each store."""

import itertools
import re
from typing import Any

import grpc
import pytest
from access import METHODS, Scene, send
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from runlane.v1 import history_service_pb2, session_service_pb2
from support_server import Link, ServerProcess, text, told

pytestmark = pytest.mark.asyncio

MADE_ID = re.compile(r"\b([a-z]{3})_[0-9a-f]{8}-[0-9a-f-]{27}\b")
TIME = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")
SPAN = re.compile(r'": "\d+(\.\d+)?s"')
TOKEN = re.compile(
    r'("(?:next_page_token|page_token|external_token|secret|cursor|key_id|last_characters|token)": )"[^"]+"'
)
OF_STORE = re.compile(
    r'"(store_kind|durability|store_id|store_version|stored_bytes|content_digest|digest|start_time'
    r'|store_size_bytes|free_bytes|uptime|version)": ("[^"]*"|\d+)'
)

LAST = ("InterruptRun", "CloseSession", "ReopenSession", "DeleteSession", "SettleRun")
"""Calls that end what others are about come after these."""

NAMES = ("a", "B", "A", "b", "a:", "a-", "a_", "aa", "a.b", "a@", "Z", "z9", "10", "9")
"""Ids that locales put in another order than bytes do."""

WORDS = {
    "nul": "a\0b",
    "astral": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "combining": "e\u0301 \u00e9 \u0130 \u00df",
    "separators": "\u2028\u2029\ufeff\u0085",
    "private": "\ue000\uffff\U0010ffff",
    "backslashes": "\\0 \\x00 \\u0000 E'\\' $1 %s ? ''",
    "blank": " \t\r\n",
    "long": "\u00e4" * 200_000,
}

VALUES = ("", " ", "none", "a/b", "a\0b", "\u00e4", "x" * 300, "\ufeff", "'; --", "-", ".")
NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**32 - 1)


class Transcript:
    """What was asked and answered, without what differs between two servers anyway."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._known: dict[str, str] = {}

    def plain(self, written: str) -> str:
        written = MADE_ID.sub(self._name, written)
        written = OF_STORE.sub(r'"\1": "*"', TOKEN.sub(r'\1"*"', written))
        return SPAN.sub('": "*"', TIME.sub("*", written))

    def _name(self, found: re.Match[str]) -> str:
        return self._known.setdefault(found[0], f"{found[1]}#{len(self._known)}")

    async def ask(self, link: Link, path: str, request: Message) -> Any:
        """Makes a call and writes down how it went; returns the answer, or None."""
        asked = f"{path} {self.plain(_json(request))[:1000]}"
        try:
            raw = await send(link, path, request.SerializeToString(deterministic=True))
        except grpc.aio.AioRpcError as error:
            how = told(error)
            answer = f"{how.code} {how.reason} {sorted(how.metadata.items())} {how.fields} {error.details()}"
            self.lines.append((asked, self.plain(answer)))
            return None
        if not isinstance(raw, bytes):  # a stream that ended without a frame
            self.lines.append((asked, "end"))
            return None
        answer = GetMessageClass(METHODS[path].output_type).FromString(raw)
        self.lines.append((asked, self.plain(_json(answer))))
        return answer


def _json(message: Message) -> str:
    return MessageToJson(message, preserving_proto_field_name=True, sort_keys=True)


def calls() -> list[str]:
    paths = [path for path in sorted(METHODS) if not path.startswith("ServerService")]
    return sorted(paths, key=lambda path: path.rpartition("/")[2] in LAST)


async def walk_calls(link: Link, told_of: Transcript) -> None:
    """Each call as it should be, about nothing, empty, and with each field made wrong."""
    scene = await Scene().play(link, "parity")
    nothing = scene.made_up()
    for path in calls():
        wrong = [nothing.request(path), GetMessageClass(METHODS[path].input_type)()]
        for field in METHODS[path].input_type.fields:
            if field.is_repeated:
                continue
            if field.type == field.TYPE_STRING:
                values: tuple[Any, ...] = VALUES
            elif field.cpp_type in {field.CPPTYPE_INT32, field.CPPTYPE_INT64}:
                values = NUMBERS
            elif field.type == field.TYPE_ENUM:
                values = (99, -1)
            else:
                continue
            for value in values:
                request = nothing.request(path)
                try:
                    setattr(request, field.name, value)
                except ValueError:  # more than the field holds
                    continue
                wrong.append(request)
        for request in [*wrong, scene.request(path)]:
            _hasten(request)
            await told_of.ask(link, path, request)


def _hasten(request: Message) -> None:
    if "wait_duration" in request.DESCRIPTOR.fields_by_name:
        request.wait_duration.FromMilliseconds(1)


async def walk_pages(link: Link, told_of: Transcript) -> None:
    """Lists of sessions, runs and events in pages of three, in each order."""
    for name in NAMES:
        for _ in range(3):
            await link.run(name, f"to {name}")
    request = history_service_pb2.ListSessionsRequest
    for order in request.Order.values():
        await _pages(link, told_of, "ListSessions", request(order=order, page_size=3))
    for name in NAMES:
        of = {"session_id": name, "page_size": 2}
        await _pages(link, told_of, "ListRuns", history_service_pb2.ListRunsRequest(**of))
        points = history_service_pb2.ListForkPointsRequest(**of)
        await _pages(link, told_of, "ListForkPoints", points)
    agents = session_service_pb2.ListAgentsRequest(page_size=3)
    await _pages(link, told_of, "ListAgents", agents, service="SessionService")


async def _pages(
    link: Link, told_of: Transcript, name: str, request: Any, service: str = "HistoryService"
) -> None:
    for _ in range(100):
        page = await told_of.ask(link, f"{service}/{name}", request)
        if page is None or not page.next_page_token:
            return
        request.page_token = page.next_page_token
    raise AssertionError("the list has no end")


async def walk_words(link: Link, told_of: Transcript) -> None:
    """Text of all kinds in content, names and labels, and read again."""
    for name, words in WORDS.items():
        spec = session_service_pb2.SessionSpec(default_agent="words", display_name=words[:50])
        spec.labels["label"] = words[:50]
        submit = session_service_pb2.SubmitRequest(
            session_id=f"words-{name}", content=text(words), create_session=spec
        )
        for one in (submit, _unnamed(submit)):
            await told_of.ask(link, "SessionService/Submit", one)
        of = {"session_id": submit.session_id}
        session = session_service_pb2.GetSessionRequest(**of)
        await told_of.ask(link, "SessionService/GetSession", session)
        messages = history_service_pb2.ListMessagesRequest(**of)
        await told_of.ask(link, "HistoryService/ListMessages", messages)


def _unnamed(submit: Any) -> Any:
    other = type(submit)()
    other.CopyFrom(submit)
    other.create_session.ClearField("display_name")
    other.create_session.labels.clear()
    return other


async def test_the_same_requests_are_answered_alike_on_each_store(
    make_server: Any, postgres: str, tmp_path: Any
) -> None:
    found = []
    for name, store in (("file", ""), ("database", postgres)):
        server: ServerProcess = make_server(tmp_path / name, store=store).start()
        transcript = Transcript()
        async with Link(server.address) as link:
            for walk in (walk_pages, walk_words, walk_calls):
                await walk(link, transcript)
        found.append(transcript.lines)
    for on_file, on_database in itertools.zip_longest(*found):
        assert on_file == on_database
    refusals = sum(answer.startswith("StatusCode.") for _, answer in found[0])
    assert 1000 < refusals < len(found[0]) - 100
