"""docs/errors.md against the table of the transport, the proto and the code that raises."""

import ast
import re
from pathlib import Path

import pytest
from runlane.v1 import error_reason_pb2, run_pb2, submission_pb2
from runlane_server.core.errors import Reason
from runlane_server.transport.errors import TABLE

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
PROTO = (ROOT / "proto" / "runlane" / "v1" / "error_reason.proto").read_text(encoding="utf-8")
SERVER = ROOT / "server" / "runlane_server"


def table(heading: str) -> list[list[str]]:
    """Returns the rows of the first table under a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2]
    lines = section[section.index("\n|") + 1 :].split("\n\n", 1)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({len(row) for row in rows}) == 1, "every row has the same cells"
    return rows[2:]


def code_words(text: str) -> set[str]:
    """Returns what stands in backquotes outside of parentheses."""
    return set(re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", text)))


def proto_comments() -> dict[str, str]:
    found = re.findall(r"((?:  //[^\n]*\n)+)  ERROR_REASON_(\w+) = \d+;", PROTO)
    return {name: " ".join(text.replace("//", " ").split()) for text, name in found}


def raised_keys() -> dict[str, set[str]]:
    """Returns the metadata keys that the server's code gives with each reason."""
    found: dict[str, set[str]] = {}
    for path in SERVER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refused"):
                continue
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Attribute) and getattr(first.value, "id", "") == "Reason":
                keys = {word.arg for word in node.keywords if word.arg} - {
                    "violations",
                    "retry_milliseconds",
                }
                found.setdefault(first.attr, set()).update(keys)
    return found


def names_of(enum, prefix: str) -> list[str]:
    return [value.name.removeprefix(prefix) for value in enum.DESCRIPTOR.values]


REASONS = {row[0]: row for row in table("Reasons")}
COMMENTS = proto_comments()


def test_the_page_has_every_reason_once_and_in_the_order_of_the_proto():
    names = names_of(error_reason_pb2.ErrorReason, "ERROR_REASON_")
    assert [row[0] for row in table("Reasons")] == names[1:]
    assert set(REASONS) == {reason.value for reason in Reason}


@pytest.mark.parametrize("reason", list(Reason))
def test_a_reason_has_the_code_that_is_sent_and_an_example(reason):
    _, code, when, _, example = REASONS[reason.value]
    assert code == TABLE[reason].code.name
    assert COMMENTS[reason.value].startswith(f"{code}: ")
    assert when
    assert example


@pytest.mark.parametrize("reason", list(Reason))
def test_a_reason_has_the_metadata_of_the_proto(reason):
    _, _, told = COMMENTS[reason.value].partition("Metadata: ")
    parts = re.sub(r"\([^)]*\)", "", told).split(".", maxsplit=1)[0].split(",")
    keys = {part.strip() for part in parts if re.fullmatch(r" *[a-z_]+ *", part)}
    assert code_words(REASONS[reason.value][3]) == keys


def test_the_code_raises_no_metadata_that_is_not_told():
    raised = raised_keys()
    assert {"SESSION_BUSY", "REQUEST_ID_REUSED", "QUEUE_FULL"} <= raised.keys()
    untold = {
        name: keys
        - code_words(REASONS[name][3])
        # Where a run is not found its id is told back, which no client depends on.
        - ({"run_id"} if name == "RUN_NOT_FOUND" else set())
        for name, keys in raised.items()
    }
    assert {name: keys for name, keys in untold.items() if keys} == {}


@pytest.mark.parametrize(
    ("heading", "enum", "prefix"),
    [
        (
            "Why a submission failed",
            submission_pb2.Submission.FailureReason,
            "FAILURE_REASON_",
        ),
        ("Why a run failed", run_pb2.RunFailure.Reason, "REASON_"),
    ],
)
def test_the_page_has_every_reason_of_failure(heading, enum, prefix):
    assert [row[0] for row in table(heading)] == names_of(enum, prefix)[1:]


def test_the_page_names_every_code_that_is_sent():
    told = set(re.findall(r"[A-Z_]{5,}", " ".join(row[0] for row in table_of_codes())))
    assert told == {row.code.name for row in TABLE.values()}


def table_of_codes() -> list[list[str]]:
    text = PAGE[PAGE.index("| code | what it means") :].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
