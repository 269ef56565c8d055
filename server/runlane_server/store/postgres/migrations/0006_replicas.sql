-- Several servers on one database. None holds it.
ALTER TABLE store DROP COLUMN holder;

-- The connection that wrote a group: a server does not look at what it wrote itself.
ALTER TABLE events ADD COLUMN origin integer NOT NULL DEFAULT 0;
ALTER TABLE events ALTER COLUMN origin SET DEFAULT pg_backend_pid();

-- What waits for an agent is one range, oldest first, for whoever has an executor for it.
ALTER TABLE queued ADD COLUMN namespace text COLLATE "C" NOT NULL DEFAULT '';
UPDATE queued q SET namespace = s.namespace FROM sessions s WHERE s.key = q.session_key;
CREATE INDEX queued_by_agent ON queued (namespace, agent, queue_time, activation_id)
    INCLUDE (not_before);

-- What is due and was not done: its server is gone.
CREATE INDEX timers_by_due_time ON timers (due_time);
ALTER TABLE notices ADD COLUMN put_time bigint NOT NULL DEFAULT 0;
CREATE INDEX notices_by_put_time ON notices (put_time);

-- Executors that a server has seen poll. `last_poll_time` of one that polls is when that was
-- written; a server that is gone writes no more.
CREATE TABLE executors (
    server text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    executor_id text COLLATE "C" NOT NULL,
    agents text[] NOT NULL,
    last_poll_time bigint NOT NULL,
    polling boolean NOT NULL,
    PRIMARY KEY (server, namespace, executor_id)
);

CREATE INDEX executors_by_poll_time ON executors (last_poll_time);
