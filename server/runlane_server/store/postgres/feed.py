"""The feed: all events of a namespace, in an order that no late commit gets behind.

A group of events is stored with the id of its transaction. Ids are given when a transaction
begins to write, and transactions end in another order; but below the oldest id that is still
in work, all is there that ever will be. So far the feed is read. It waits for a transaction
that takes long, whoever's it is in the whole cluster, and never passes one.
"""

from typing import Any

from runlane_server.store.base import FEED_SCAN, EventGroup, FeedGroup, FeedPage, FeedPlace
from runlane_server.store.postgres.connect import Conn

_XMIN = "pg_snapshot_xmin(pg_current_snapshot())"
_RANGE = (
    f"FROM events WHERE (feed, session_key, last) > ($2::text::xid8, $3::bigint, $4::bigint)"
    f" AND feed < {_XMIN} ORDER BY feed, session_key, last"
)
# One row at least: where the read ended, and with it each group that was found. What is of
# others is looked at in the index alone; OFFSET 0 keeps the joins in this order. A group holds
# at least one event, so no more than `max_events` are joined.
_FEED = (
    "WITH page AS MATERIALIZED (SELECT c.feed, c.session_key, c.last, e.first, s.session_id,"  # noqa: S608 - constants
    f" e.data FROM (SELECT feed, session_key, last {_RANGE} LIMIT {FEED_SCAN}) c"
    " JOIN LATERAL (SELECT namespace, session_id FROM sessions"
    " WHERE key = c.session_key OFFSET 0) s ON s.namespace = $1"
    " JOIN LATERAL (SELECT first, data FROM events WHERE session_key = c.session_key"
    " AND last = c.last OFFSET 0) e ON true"
    " ORDER BY c.feed, c.session_key, c.last LIMIT $5),"
    " sized AS MATERIALIZED (SELECT p.*, row_number() OVER so_far AS place,"
    " sum(length(p.data)) OVER so_far AS size, sum(p.last - p.first + 1) OVER so_far AS count"
    " FROM page p WINDOW so_far AS (ORDER BY p.feed, p.session_key, p.last)),"
    " taken AS MATERIALIZED (SELECT * FROM sized o WHERE o.place = 1 OR (o.size <= $6"
    " AND o.size - length(o.data) < $6 AND o.count - (o.last - o.first + 1) < $5))"
    f" SELECT {_XMIN}::text::bigint, (SELECT count(*) FROM page),"
    " (SELECT array[x.feed::text::bigint, x.session_key, x.last]"
    f" FROM (SELECT feed, session_key, last {_RANGE} OFFSET {FEED_SCAN - 1} LIMIT 1) x),"
    " t.feed::text::bigint, t.session_key, t.last, t.first, t.session_id, t.data"
    " FROM (SELECT 1) one LEFT JOIN taken t ON true ORDER BY t.place"
)


async def feed(
    conn: Conn, namespace: str, after: FeedPlace, max_events: int, max_bytes: int
) -> FeedPage:
    """Store.feed."""
    rows: list[Any] = await conn.fetch(
        _FEED,
        namespace,
        str(after.feed),
        after.session_key,
        after.sequence,
        max_events,
        max_bytes,
    )
    xmin, found, scanned = rows[0][:3]
    groups = [
        FeedGroup(FeedPlace(number, key, last), session_id, EventGroup(first, last, data))
        for number, key, last, first, session_id, data in (row[3:] for row in rows)
        if number is not None
    ]
    if len(groups) < found or found == max_events:
        return FeedPage(groups, groups[-1].place, more=True)
    if scanned is not None:
        return FeedPage(groups, FeedPlace(*scanned), more=True)
    return FeedPage(groups, max(after, FeedPlace(xmin, 0, 0)), more=False)


async def feed_end(conn: Conn) -> FeedPlace:
    """Store.feed_end: also what is in work now comes after it."""
    return FeedPlace(await conn.fetchval(f"SELECT {_XMIN}::text::bigint"), 0, 0)
