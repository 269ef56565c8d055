import pytest
from runlane_server.core.errors import Reason, Refused
from runlane_server.store.base import FEED_START, FeedPlace
from runlane_server.transport.paging import FeedCursors, Pager, fitting, page_limit

PAGER = Pager("ListRuns", "default", "s", [1])


@pytest.mark.parametrize(
    ("read", "cursor"),
    [
        ("place", (1_700_000_000_000_000, "run_1")),
        ("number", 2**62),
        ("name", "agent é"),
        ("pair", (3, 0)),
    ],
)
def test_a_token_gives_its_cursor_back(read, cursor):
    token = PAGER.token(cursor)
    assert len(token) < 2048
    assert getattr(PAGER, read)(token) == cursor


def test_no_token():
    assert PAGER.token(None) == ""
    assert (PAGER.place(""), PAGER.number(""), PAGER.name("")) == (None, None, "")
    assert PAGER.pair("") is None


@pytest.mark.parametrize(
    "other",
    [
        Pager("ListRuns", "other", "s", [1]),
        Pager("ListForkPoints", "default", "s", [1]),
        Pager("ListRuns", "default", "t", [1]),
        Pager("ListRuns", "default", "s", []),
        Pager("ListRuns", "default", "s"),
    ],
)
def test_a_token_belongs_to_its_arguments(other):
    with pytest.raises(Refused) as caught:
        PAGER.place(other.token((5, "x")))
    assert caught.value.reason is Reason.PAGE_TOKEN_MISMATCH


def test_what_was_made_or_changed_elsewhere_is_refused():
    token = PAGER.token((5, "x"))
    broken = ["x", "é", "====", "a" * 2048, token[:-1], token + "AAAA", "%%%%", "A" * 40, token[:4]]
    broken += [
        token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        for place in range(len(token))
    ]
    for one in broken:
        if one == token:
            continue
        with pytest.raises(Refused) as caught:
            PAGER.place(one)
        assert caught.value.reason in {Reason.PAGE_TOKEN_INVALID, Reason.PAGE_TOKEN_MISMATCH}
    for cursor in (5, (5, "ses\0x"), (5, ""), (5, "x\n"), (5, "x" * 129), (-1, "x"), (2**63, "x")):
        with pytest.raises(Refused) as caught:
            PAGER.place(PAGER.token(cursor))
        assert caught.value.reason is Reason.PAGE_TOKEN_INVALID


def test_a_cursor_of_a_feed_belongs_to_a_namespace_and_a_store_as_it_is():
    cursors = FeedCursors("default", "sto_1", 1)
    for place in (FEED_START, FeedPlace(2**40, 2**30, 7), FeedPlace(2**63 - 1, 1, 2**31)):
        assert cursors.feed_place(cursors.token(place)) == place
        assert len(cursors.token(place)) < 64
    assert cursors.feed_place("") == FEED_START
    others = [
        FeedCursors("other", "sto_1", 1),
        FeedCursors("default", "sto_2", 1),
        FeedCursors("default", "sto_1", 2),
        PAGER,
    ]
    for other in others:
        with pytest.raises(Refused, match="cursor") as caught:
            cursors.feed_place(other.token((5, 6, 7)))
        assert caught.value.reason is Reason.PAGE_TOKEN_MISMATCH
    for broken in ("x", cursors.token((5, 6)), cursors.token(5), cursors.token((5, -1, 7))):
        with pytest.raises(Refused, match="cursor") as caught:
            cursors.feed_place(broken)
        assert caught.value.reason is Reason.PAGE_TOKEN_INVALID


def test_sizes():
    assert [page_limit(size) for size in (0, 1, 50, 1000, 1001, 2**31 - 1)] == [
        50,
        1,
        50,
        1000,
        1000,
        1000,
    ]
    assert fitting([]) == 0
    assert fitting([3_000_000, 1]) == 1
    assert fitting([1_000_000] * 5) == 2
    assert fitting([1] * 1000) == 1000
