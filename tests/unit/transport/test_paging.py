import pytest
from runlane_server.core.errors import Reason, Refused
from runlane_server.transport.paging import Pager, fitting, page_limit

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
    with pytest.raises(Refused) as caught:
        PAGER.place(PAGER.token(5))
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
