-- The newest states of blocks on their way, for those who read them on other servers. They come
-- and go within seconds, nobody needs them, and a crash empties the table: so it is in no log.
CREATE UNLOGGED TABLE deltas (
    session_key bigint NOT NULL,
    model_stream_id text COLLATE "C" NOT NULL,
    block_index integer NOT NULL,
    put_time bigint NOT NULL,
    server text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (session_key, model_stream_id, block_index)
) WITH (fillfactor = 50);
