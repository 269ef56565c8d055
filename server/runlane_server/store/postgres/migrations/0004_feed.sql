-- The order of the feed, and what other servers have moved: see `events` in the first one.
CREATE INDEX events_by_feed ON events (feed, session_key, last);
