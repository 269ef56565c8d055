"""The digest of an archive is a contract: these lines, and no others."""

import hashlib
import json

from runlane_server.core.archives import (
    ArchivedMessage,
    ArchivedRun,
    ArchivedSummary,
    ContentDigest,
)
from runlane_server.core.model import (
    Cancellation,
    Content,
    Failure,
    RunLimits,
    RunOptions,
    SessionRecord,
    Usage,
)
from runlane_server.core.words import Author, Role, RunFailure, StopReason

LINES = [
    ["session", "Näme", {"a": "1", "b": "2"}, '{"k":1.0}', "main"],
    [
        "run", 2, 3, 7, 2, [7, "broken", True], 3, "[1]", [1, 2, 3, 4, 5, 6, 7], 8, 9, 10, 11,
        ["enough", 12], 13, 14, 15,
        ["main", "m", [1, 2, 3, 4, 5, 6, 7], ["t"], 16, 2, 2, 3, 17, "{}"],
    ],
    ["summary", 2, "sum", "m-2", 18],
    ["message", 1, 2, 3, 1, "m-1", 19, "0a0b"],
]  # fmt: skip


def run(run_id: str) -> ArchivedRun:
    options = RunOptions("main", "m", RunLimits(1, 2, 3, 4, 5, 6, 7), ("t",), 16, 2, 2, 3, 17, "{}")
    return ArchivedRun(
        5, run_id, options, 2, 3, StopReason.OUTCOME_UNKNOWN, StopReason.FAILED,
        Failure(RunFailure.EXECUTOR_ERROR, "broken", retryable=True), 3, "[1]",
        Usage(1, 2, 3, 4, 5, 6, 7), 8, 9, 10, 11, Cancellation("enough", 12, 99), 13, 14, 15,
    )  # fmt: skip


def digest(run_id: str) -> bytes:
    made = ContentDigest()
    made.record(SessionRecord("Näme", {"b": "2", "a": "1"}, '{"k":1.0}', "main"))
    made.run(run(run_id))
    made.summary(ArchivedSummary(6, 2, "sum", "m-2", 18))
    content = Content(b"", 0, b"\x0a\x0b")
    made.message(1, ArchivedMessage(7, run_id, Role.ASSISTANT, Author.MODEL, 1, "m-1", 19, content))
    return made.digest()


def test_the_digest_is_over_these_lines():
    text = "".join(
        json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in LINES
    )
    assert digest("run_1") == hashlib.sha256(text.encode()).digest()
    assert digest("run_1").hex() == GOLDEN


def test_ids_are_no_part_of_it():
    assert digest("run_1") == digest("run_2")


GOLDEN = "b3a767fbe555ac1923a8cfb726c9db2c6e71a0479c64ad5a107a5db1058b0c5f"
