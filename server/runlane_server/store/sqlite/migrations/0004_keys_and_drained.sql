-- A request_id makes one key, whichever servers it was sent to. Of those that it made before,
-- the oldest one has it.
UPDATE api_keys AS k SET request_id = '' WHERE request_id <> '' AND EXISTS (SELECT 1 FROM api_keys o
    WHERE o.request_id = k.request_id AND (o.create_time, o.key_id) < (k.create_time, k.key_id));
CREATE UNIQUE INDEX api_keys_by_request ON api_keys (request_id) WHERE request_id <> '';

-- Live keys are read each second: those that ended are not among them. 0 is never.
CREATE INDEX api_keys_by_expiry
    ON api_keys (coalesce(nullif(expire_time, 0), 9223372036854775807))
    WHERE revoke_time = 0;
CREATE INDEX api_keys_by_create_time ON api_keys (create_time, key_id);

-- Of drained executors the newest are kept.
ALTER TABLE drained_executors ADD COLUMN drain_time INTEGER NOT NULL DEFAULT 0;
CREATE INDEX drained_executors_by_time
    ON drained_executors (drain_time, namespace, executor_id);
