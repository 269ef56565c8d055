-- Credentials. A row stays for ever: it says whom the `actor` of an old event was.
-- `hash` is SHA-256 of a secret of 256 random bits; the secret is kept nowhere.
-- `scopes` has bit n for scope number n. Times of 0: never, not.
CREATE TABLE api_keys (
    key_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    namespace TEXT NOT NULL,
    scopes INTEGER NOT NULL,
    hash BLOB NOT NULL,
    last_characters TEXT NOT NULL,
    create_time INTEGER NOT NULL,
    expire_time INTEGER NOT NULL,
    revoke_time INTEGER NOT NULL,
    request_id TEXT NOT NULL
) WITHOUT ROWID;
