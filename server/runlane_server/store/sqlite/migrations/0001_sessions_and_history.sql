-- What a write costs is the number of pages it touches, so there are few trees, and an
-- index holds no more than it must. Large rows are appended to rowid tables, and found
-- through a slim UNIQUE index: kept by session, most of their inserts would split a page.

-- One row: what this store is. `secret` is 32 random bytes, made with it.
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    secret BLOB NOT NULL
);

-- A row stays for ever: deleted, it is a tombstone that keeps the id from being used again.
CREATE TABLE sessions (
    key INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    session_id TEXT NOT NULL,
    token BLOB NOT NULL,
    status INTEGER NOT NULL,
    deleted_time INTEGER NOT NULL DEFAULT 0,
    create_time INTEGER NOT NULL,
    update_time INTEGER NOT NULL,
    base_count INTEGER NOT NULL DEFAULT 0,
    current_run_id TEXT NOT NULL,
    source_session_id TEXT NOT NULL DEFAULT '',
    source_run_id TEXT NOT NULL DEFAULT '',
    parent_session_id TEXT NOT NULL DEFAULT '',
    parent_run_id TEXT NOT NULL DEFAULT '',
    parent_call_id TEXT NOT NULL DEFAULT '',
    parent_depth INTEGER NOT NULL DEFAULT 0,
    display_name TEXT NOT NULL,
    labels TEXT NOT NULL,
    default_agent TEXT NOT NULL,
    state BLOB NOT NULL,
    metadata_json TEXT NOT NULL,
    UNIQUE (namespace, session_id)
);

CREATE INDEX sessions_by_create_time ON sessions (namespace, create_time)
    WHERE deleted_time = 0;
CREATE INDEX sessions_by_update_time ON sessions (namespace, update_time)
    WHERE deleted_time = 0;
CREATE INDEX sessions_by_source ON sessions (namespace, source_session_id, create_time)
    WHERE deleted_time = 0 AND source_session_id <> '';

CREATE INDEX sessions_by_parent ON sessions (namespace, parent_session_id)
    WHERE deleted_time = 0 AND parent_session_id <> '';

CREATE TABLE session_labels (
    session_key INTEGER NOT NULL,
    label TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (session_key, label)
) WITHOUT ROWID;

-- Where the messages 1 to base_count of a fork are. `owner_key` is a session that
-- appended them itself.
CREATE TABLE segments (
    session_key INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    owner_key INTEGER NOT NULL,
    PRIMARY KEY (session_key, first)
) WITHOUT ROWID;

CREATE INDEX segments_by_owner ON segments (owner_key, last);

-- `submission_id` is NULL where the input started the run at once: then it is the run's
-- id with the prefix `sub`, and has no row in `submissions`.
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    session_key INTEGER NOT NULL,
    create_time INTEGER NOT NULL,
    phase INTEGER NOT NULL,
    stalled INTEGER NOT NULL DEFAULT 0,
    mode INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    message_number INTEGER NOT NULL,
    submission_id TEXT,
    parent_run_id TEXT NOT NULL DEFAULT '',
    agent TEXT NOT NULL,
    request_id TEXT NOT NULL,
    stop_reason INTEGER,
    cause INTEGER,
    failure_reason INTEGER NOT NULL DEFAULT 0,
    failure_retryable INTEGER NOT NULL DEFAULT 0,
    output_message_number INTEGER NOT NULL DEFAULT 0,
    message_cutoff INTEGER NOT NULL DEFAULT 0,
    summary_through INTEGER NOT NULL DEFAULT 0,
    end_time INTEGER NOT NULL DEFAULT 0,
    last_sequence INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    digest BLOB NOT NULL DEFAULT x'',
    usage BLOB NOT NULL DEFAULT x'',
    cancellation BLOB NOT NULL DEFAULT x'',
    preview TEXT NOT NULL,
    options BLOB NOT NULL,
    failure_message TEXT NOT NULL DEFAULT '',
    output_json TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;

CREATE INDEX runs_by_session ON runs (session_key, create_time);
CREATE INDEX runs_by_parent ON runs (parent_run_id, create_time) WHERE parent_run_id <> '';
CREATE INDEX runs_stalled ON runs (create_time) WHERE stalled = 1;

-- Only input that was queued. Content and options are emptied on delivery: a message, and
-- the run, have them from then on.
CREATE TABLE submissions (
    key INTEGER PRIMARY KEY,
    submission_id TEXT NOT NULL UNIQUE,
    session_key INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    mode INTEGER NOT NULL,
    route INTEGER NOT NULL,
    state INTEGER NOT NULL,
    create_time INTEGER NOT NULL,
    settle_time INTEGER NOT NULL DEFAULT 0,
    failure INTEGER NOT NULL DEFAULT 0,
    message_number INTEGER NOT NULL DEFAULT 0,
    request_id TEXT NOT NULL,
    preview TEXT NOT NULL,
    options BLOB NOT NULL,
    content BLOB NOT NULL
);

CREATE INDEX submissions_by_session ON submissions (session_key, state, create_time);
CREATE INDEX submissions_by_run ON submissions (run_id);

-- `result` is there from when it was stored out of turn until its message is appended;
-- `message_number` is that message's, 0 before. Each step of a call writes its row anew, so
-- long arguments are elsewhere: `arguments_key` is theirs, and `arguments_json` is NULL then.
-- Without both they are malformed.
CREATE TABLE tool_calls (
    run_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    session_key INTEGER NOT NULL,
    state INTEGER NOT NULL,
    idempotent INTEGER NOT NULL DEFAULT 0,
    outcome INTEGER NOT NULL DEFAULT 0,
    message_number INTEGER NOT NULL DEFAULT 0,
    create_time INTEGER NOT NULL,
    settle_time INTEGER NOT NULL DEFAULT 0,
    tool_call_id TEXT NOT NULL,
    name TEXT NOT NULL,
    child_run_id TEXT NOT NULL DEFAULT '',
    arguments_key INTEGER,
    arguments_json TEXT,
    result BLOB,
    PRIMARY KEY (run_id, step, ordinal)
) WITHOUT ROWID;

CREATE TABLE long_arguments (
    key INTEGER PRIMARY KEY,
    arguments_json TEXT NOT NULL
);

-- `namespace` is the session's: the inbox is one range of an index, whatever its state.
-- `step` is the newest model step that was committed before. `proxy_...` name the question
-- that a proxy shows.
CREATE TABLE interactions (
    key INTEGER PRIMARY KEY,
    interaction_id TEXT NOT NULL UNIQUE,
    session_key INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    run_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    version INTEGER NOT NULL,
    state INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    close_reason INTEGER NOT NULL DEFAULT 0,
    expire_time INTEGER NOT NULL,
    create_time INTEGER NOT NULL,
    settle_time INTEGER NOT NULL DEFAULT 0,
    answer_hash BLOB NOT NULL DEFAULT x'',
    proxy_session_id TEXT NOT NULL DEFAULT '',
    proxy_run_id TEXT NOT NULL DEFAULT '',
    proxy_interaction_id TEXT NOT NULL DEFAULT '',
    prompt BLOB NOT NULL,
    answer BLOB NOT NULL DEFAULT x''
);

CREATE INDEX interactions_by_state
    ON interactions (namespace, state, create_time, interaction_id);
CREATE INDEX interactions_by_session
    ON interactions (session_key, state, create_time, interaction_id);
CREATE INDEX interactions_by_run ON interactions (run_id, step, create_time, interaction_id);

-- All that sessions append: messages, and the event groups of commits. `id` is the
-- session's key * 2^32, plus 2^31 for an event group, plus the message's number or the
-- sequence of the group's last event. In one table they are appended to the same page, and
-- found through the same page of the index.
-- `feed` grows over all sessions, with gaps; a group's is never used again.
CREATE TABLE entries (
    feed INTEGER PRIMARY KEY,
    id INTEGER NOT NULL UNIQUE,
    first INTEGER NOT NULL,
    data BLOB NOT NULL
);

-- The request_id comes first in the key: ids that grow with time are appended then.
-- `session_key` is that of the session that the request made; it keeps the record.
CREATE TABLE requests (
    request_id TEXT NOT NULL,
    scope TEXT NOT NULL,
    method TEXT NOT NULL,
    namespace TEXT NOT NULL,
    session_key INTEGER,
    create_time INTEGER NOT NULL,
    hash BLOB NOT NULL,
    answer BLOB NOT NULL,
    PRIMARY KEY (request_id, scope, method, namespace)
) WITHOUT ROWID;

CREATE TABLE queued (
    activation_id TEXT PRIMARY KEY,
    session_key INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    agent TEXT NOT NULL,
    queue_time INTEGER NOT NULL,
    not_before INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE leases (
    activation_id TEXT PRIMARY KEY,
    session_key INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    agent TEXT NOT NULL,
    executor_id TEXT NOT NULL,
    duration INTEGER NOT NULL,
    expire_time INTEGER NOT NULL,
    confirmed INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX leases_by_session ON leases (session_key);

CREATE TABLE timers (
    session_key INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    due_time INTEGER NOT NULL,
    PRIMARY KEY (session_key, kind)
) WITHOUT ROWID;

-- What one session has to tell another, until that has applied it. `session_id` is told.
CREATE TABLE notices (
    namespace TEXT NOT NULL,
    session_id TEXT NOT NULL,
    kind INTEGER NOT NULL,
    cause TEXT NOT NULL,
    PRIMARY KEY (namespace, session_id, kind, cause)
) WITHOUT ROWID;

-- A summary of the messages 1 to `through`; a fork has a copy of the one that it took over.
CREATE TABLE summaries (
    key INTEGER PRIMARY KEY,
    session_key INTEGER NOT NULL,
    through INTEGER NOT NULL,
    create_time INTEGER NOT NULL,
    model TEXT NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (session_key, through)
);

CREATE TABLE drained_executors (
    namespace TEXT NOT NULL,
    executor_id TEXT NOT NULL,
    PRIMARY KEY (namespace, executor_id)
) WITHOUT ROWID;
