"""Patterns of the protos are told in words."""

import re
from pathlib import Path

import pytest
from runlane.v1 import history_service_pb2 as pb
from runlane_server.core.errors import Reason, Refused
from runlane_server.transport.validation import PATTERNS, validate

PROTOS = Path(__file__).resolve().parents[3] / "proto"


def test_every_pattern_of_the_protos_has_words():
    found = {
        pattern
        for path in PROTOS.rglob("*.proto")
        for pattern in re.findall(r'pattern[:=]? *[:=]? *"(.*?)"', path.read_text())
    }
    assert found == PATTERNS.keys()


@pytest.mark.parametrize("given", ["a b", "é", "x" * 129, "-x"])
def test_an_id_that_is_none_is_told_what_one_is(given):
    request = pb.ListRunsRequest(session_id=given)
    with pytest.raises(Refused) as caught:
        validate(request, request.ByteSize())
    assert caught.value.reason is Reason.FIELD_INVALID
    words = "is no id: a letter or digit, then up to 127 letters, digits and . _ : @ -"
    assert caught.value.violations == (("session_id", words),)
    assert str(given) not in str(caught.value).removeprefix("session_id: ").replace(words, "")
