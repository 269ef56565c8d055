-- The tables of the SQLite store, as far as what that one knows of pages does not hold here:
-- messages and events have tables of their own, long arguments lie out of line by themselves,
-- and labels are one column. Ids compare as bytes do, on every machine: COLLATE "C".

-- One row: what this store is. `secret` is 32 random bytes, made with it. `holder` is the
-- server that may write: who opens the store puts itself there.
CREATE TABLE store (
    id integer PRIMARY KEY CHECK (id = 1),
    store_id text NOT NULL,
    epoch bigint NOT NULL,
    secret bytea NOT NULL,
    holder text NOT NULL DEFAULT ''
);

-- A number is the first key of a block of 64 that one server gives out.
CREATE SEQUENCE session_keys AS bigint INCREMENT BY 64;

-- A row stays for ever: deleted, it is a tombstone that keeps the id from being used again.
CREATE TABLE sessions (
    key bigint PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    token bytea NOT NULL,
    status integer NOT NULL,
    deleted_time bigint NOT NULL DEFAULT 0,
    create_time bigint NOT NULL,
    update_time bigint NOT NULL,
    base_count bigint NOT NULL DEFAULT 0,
    current_run_id text COLLATE "C" NOT NULL,
    source_session_id text COLLATE "C" NOT NULL DEFAULT '',
    source_run_id text COLLATE "C" NOT NULL DEFAULT '',
    parent_session_id text COLLATE "C" NOT NULL DEFAULT '',
    parent_run_id text COLLATE "C" NOT NULL DEFAULT '',
    parent_call_id text COLLATE "C" NOT NULL DEFAULT '',
    parent_depth integer NOT NULL DEFAULT 0,
    display_name text NOT NULL,
    labels jsonb NOT NULL,
    default_agent text NOT NULL,
    metadata_json text NOT NULL,
    state bytea NOT NULL,
    UNIQUE (namespace, session_id)
) WITH (fillfactor = 80);

CREATE INDEX sessions_by_create_time ON sessions (namespace, create_time)
    WHERE deleted_time = 0;
CREATE INDEX sessions_by_update_time ON sessions (namespace, update_time)
    WHERE deleted_time = 0;
CREATE INDEX sessions_by_source ON sessions (namespace, source_session_id, create_time)
    WHERE deleted_time = 0 AND source_session_id <> '';
CREATE INDEX sessions_by_parent ON sessions (namespace, parent_session_id)
    WHERE deleted_time = 0 AND parent_session_id <> '';

-- Where the messages 1 to base_count of a fork are. `owner_key` is a session that
-- appended them itself.
CREATE TABLE segments (
    session_key bigint NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    owner_key bigint NOT NULL,
    PRIMARY KEY (session_key, first)
);

CREATE INDEX segments_by_owner ON segments (owner_key, last);

-- `submission_id` is NULL where the input started the run at once: then it is the run's
-- id with the prefix `sub`, and has no row in `submissions`.
CREATE TABLE runs (
    run_id text COLLATE "C" PRIMARY KEY,
    session_key bigint NOT NULL,
    create_time bigint NOT NULL,
    first_sequence bigint NOT NULL,
    message_number bigint NOT NULL,
    output_message_number bigint NOT NULL DEFAULT 0,
    message_cutoff bigint NOT NULL DEFAULT 0,
    summary_through bigint NOT NULL DEFAULT 0,
    end_time bigint NOT NULL DEFAULT 0,
    last_sequence bigint NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    phase integer NOT NULL,
    mode integer NOT NULL,
    stop_reason integer,
    cause integer,
    failure_reason integer NOT NULL DEFAULT 0,
    failure_retryable boolean NOT NULL DEFAULT false,
    stalled boolean NOT NULL DEFAULT false,
    submission_id text COLLATE "C",
    parent_run_id text COLLATE "C" NOT NULL DEFAULT '',
    agent text NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    digest bytea NOT NULL DEFAULT '',
    usage bytea NOT NULL DEFAULT '',
    cancellation bytea NOT NULL DEFAULT '',
    preview text NOT NULL,
    options bytea NOT NULL,
    failure_message text NOT NULL DEFAULT '',
    output_json text NOT NULL DEFAULT ''
) WITH (fillfactor = 80);

CREATE INDEX runs_by_session ON runs (session_key, create_time, run_id);
CREATE INDEX runs_by_parent ON runs (parent_run_id, create_time, run_id)
    WHERE parent_run_id <> '';
CREATE INDEX runs_stalled ON runs (create_time, run_id) WHERE stalled;

-- Only input that was queued. Content and options are emptied on delivery: a message, and
-- the run, have them from then on.
CREATE TABLE submissions (
    submission_id text COLLATE "C" PRIMARY KEY,
    session_key bigint NOT NULL,
    create_time bigint NOT NULL,
    settle_time bigint NOT NULL DEFAULT 0,
    message_number bigint NOT NULL DEFAULT 0,
    mode integer NOT NULL,
    route integer NOT NULL,
    state integer NOT NULL,
    failure integer NOT NULL DEFAULT 0,
    run_id text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    preview text NOT NULL,
    options bytea NOT NULL,
    content bytea NOT NULL
);

CREATE INDEX submissions_by_session
    ON submissions (session_key, state, create_time, submission_id);
CREATE INDEX submissions_by_run ON submissions (run_id);

-- `result` is there from when it was stored out of turn until its message is appended;
-- `message_number` is that message's, 0 before. `arguments_json` is NULL where the
-- arguments are malformed.
CREATE TABLE tool_calls (
    run_id text COLLATE "C" NOT NULL,
    step integer NOT NULL,
    ordinal integer NOT NULL,
    session_key bigint NOT NULL,
    message_number bigint NOT NULL DEFAULT 0,
    create_time bigint NOT NULL,
    settle_time bigint NOT NULL DEFAULT 0,
    state integer NOT NULL,
    outcome integer NOT NULL DEFAULT 0,
    idempotent boolean NOT NULL DEFAULT false,
    tool_call_id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    child_run_id text COLLATE "C" NOT NULL DEFAULT '',
    arguments_json text,
    result bytea,
    PRIMARY KEY (run_id, step, ordinal)
) WITH (fillfactor = 80);

-- `namespace` is the session's: the inbox is one range of an index, whatever its state.
-- `step` is the newest model step that was committed before. `proxy_...` name the question
-- that a proxy shows.
CREATE TABLE interactions (
    interaction_id text COLLATE "C" PRIMARY KEY,
    session_key bigint NOT NULL,
    expire_time bigint NOT NULL,
    create_time bigint NOT NULL,
    settle_time bigint NOT NULL DEFAULT 0,
    step integer NOT NULL,
    version integer NOT NULL,
    state integer NOT NULL,
    kind integer NOT NULL,
    close_reason integer NOT NULL DEFAULT 0,
    namespace text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    proxy_session_id text COLLATE "C" NOT NULL DEFAULT '',
    proxy_run_id text COLLATE "C" NOT NULL DEFAULT '',
    proxy_interaction_id text COLLATE "C" NOT NULL DEFAULT '',
    answer_hash bytea NOT NULL DEFAULT '',
    prompt bytea NOT NULL,
    answer bytea NOT NULL DEFAULT ''
);

CREATE INDEX interactions_by_state
    ON interactions (namespace, state, create_time, interaction_id);
CREATE INDEX interactions_by_session
    ON interactions (session_key, state, create_time, interaction_id);
CREATE INDEX interactions_by_run ON interactions (run_id, step, create_time, interaction_id);

CREATE TABLE messages (
    session_key bigint NOT NULL,
    number bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (session_key, number)
);

-- A group is the events of one commit, `first` to `last` by sequence. (feed, session_key,
-- last) is its place among all of them: it grows, and what is below
-- pg_snapshot_xmin(pg_current_snapshot()) is complete.
CREATE TABLE events (
    session_key bigint NOT NULL,
    last bigint NOT NULL,
    first bigint NOT NULL,
    feed xid8 NOT NULL DEFAULT pg_current_xact_id(),
    data bytea NOT NULL,
    PRIMARY KEY (session_key, last)
);

-- The request_id comes first in the key: ids that grow with time are appended then.
-- `session_key` is that of the session that the request made; it keeps the record.
CREATE TABLE requests (
    request_id text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    method text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    session_key bigint,
    create_time bigint NOT NULL,
    hash bytea NOT NULL,
    answer bytea NOT NULL,
    PRIMARY KEY (request_id, scope, method, namespace)
);

CREATE TABLE queued (
    activation_id text COLLATE "C" PRIMARY KEY,
    session_key bigint NOT NULL,
    queue_time bigint NOT NULL,
    not_before bigint NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    agent text NOT NULL
);

CREATE INDEX queued_by_session ON queued (session_key);

CREATE TABLE leases (
    activation_id text COLLATE "C" PRIMARY KEY,
    session_key bigint NOT NULL,
    duration bigint NOT NULL,
    expire_time bigint NOT NULL,
    epoch integer NOT NULL,
    confirmed boolean NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    agent text NOT NULL,
    executor_id text NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX leases_by_session ON leases (session_key);

CREATE TABLE timers (
    session_key bigint NOT NULL,
    kind integer NOT NULL,
    due_time bigint NOT NULL,
    PRIMARY KEY (session_key, kind)
);

-- What one session has to tell another, until that has applied it. `session_id` is told.
CREATE TABLE notices (
    namespace text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    kind integer NOT NULL,
    cause text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, session_id, kind, cause)
);

-- A summary of the messages 1 to `through`; a fork has a copy of the one that it took over.
CREATE TABLE summaries (
    session_key bigint NOT NULL,
    through bigint NOT NULL,
    create_time bigint NOT NULL,
    model text NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (session_key, through)
);

CREATE TABLE drained_executors (
    namespace text COLLATE "C" NOT NULL,
    executor_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, executor_id)
);
