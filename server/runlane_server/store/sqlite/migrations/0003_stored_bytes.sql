-- What a session takes: the bytes of its messages, of its input that waits or waited in vain,
-- and of its events. It is in the row that each commit writes anyway, and in no index.
ALTER TABLE sessions ADD COLUMN stored_bytes INTEGER NOT NULL DEFAULT 0;

UPDATE sessions SET stored_bytes = (
    SELECT coalesce(sum(length(e.data)), 0) FROM entries e
    WHERE e.id BETWEEN sessions.key * 4294967296 AND sessions.key * 4294967296 + 4294967295
) + (
    SELECT coalesce(sum(length(s.content)), 0) FROM submissions s
    WHERE s.session_key = sessions.key
);
