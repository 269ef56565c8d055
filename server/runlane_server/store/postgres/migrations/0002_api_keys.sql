-- Credentials. A row stays for ever: it says whom the `actor` of an old event was.
-- `hash` is SHA-256 of a secret of 256 random bits; the secret is kept nowhere.
-- `scopes` has bit n for scope number n. Times of 0: never, not.
CREATE TABLE api_keys (
    key_id text COLLATE "C" PRIMARY KEY,
    name text NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    scopes integer NOT NULL,
    hash bytea NOT NULL,
    last_characters text NOT NULL,
    create_time bigint NOT NULL,
    expire_time bigint NOT NULL,
    revoke_time bigint NOT NULL,
    request_id text COLLATE "C" NOT NULL
);
