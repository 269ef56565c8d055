-- What a session takes: the bytes of its messages, of its input that waits or waited in vain,
-- and of its events. It is in the row that each commit writes anyway, and in no index, so
-- that its row stays on its page.
ALTER TABLE sessions ADD COLUMN stored_bytes bigint NOT NULL DEFAULT 0;

UPDATE sessions s SET stored_bytes = (
    SELECT coalesce(sum(octet_length(m.data)), 0) FROM messages m WHERE m.session_key = s.key
) + (
    SELECT coalesce(sum(octet_length(e.data)), 0) FROM events e WHERE e.session_key = s.key
) + (
    SELECT coalesce(sum(octet_length(q.content)), 0) FROM submissions q WHERE q.session_key = s.key
) WHERE s.deleted_time = 0;
