"""API keys: what they open, and how the secret of one is made and proved.

A secret is `rlk_`, the id's hexadecimal digits, `_` and 256 random bits. The id in it finds
the key without a search. Only SHA-256 of it is kept. A slow hash guards what people choose,
because that can be guessed; 256 random bits cannot, and a slow hash would be paid by every
call.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass
from enum import IntEnum

DEFAULT_NAMESPACE = "default"
"""Where those are who have no credential, and those whose credential opens all and name none."""

EVERY_NAMESPACE = "*"
SECRET_PREFIX = "rlk_"  # noqa: S105 - begins a secret, is none
ID_PREFIX = "key_"
RANDOM_BYTES = 32
_ID_END = len(SECRET_PREFIX) + 32
_LENGTH = _ID_END + 1 + 43


class Scope(IntEnum):
    """What a credential may do; none holds another."""

    READ = 1
    SUBMIT = 2
    ANSWER = 3
    EXECUTE = 4
    ADMIN = 5


def scope_bits(*scopes: Scope) -> int:
    """Returns a set of scopes as one number."""
    bits = 0
    for scope in scopes:
        bits |= 1 << scope
    return bits


def scopes_of(bits: int) -> list[Scope]:
    """Returns the scopes of a set, in their order."""
    return [scope for scope in Scope if bits >> scope & 1]


ALL_SCOPES = scope_bits(*Scope)


@dataclass(slots=True, frozen=True)
class ApiKey:
    """An API key as it is kept.

    Attributes:
        namespace: The one that it opens, or EVERY_NAMESPACE.
        scopes: As of `scope_bits`.
        hash: SHA-256 of the secret.
        last_characters: Of the secret, for people.
        expire_time: 0: never.
        revoke_time: 0: it was not.
        request_id: Of the call that made it, after the namespace of that call and a `/`; empty:
            none.
    """

    key_id: str
    name: str
    namespace: str
    scopes: int
    hash: bytes
    last_characters: str
    create_time: int
    expire_time: int = 0
    revoke_time: int = 0
    request_id: str = ""

    def ended(self, now: int) -> bool:
        """Tells whether it opens nothing any more."""
        return bool(self.revoke_time) or 0 < self.expire_time <= now


def make_secret(key_id: str, random: bytes) -> str:
    """Returns the secret of a key from random bytes."""
    text = base64.urlsafe_b64encode(random).decode("ascii").rstrip("=")
    return f"{SECRET_PREFIX}{place_of(key_id)}_{text}"


def hash_secret(secret: str) -> bytes:
    """Returns what is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def place_of(key_id: str) -> str:
    """Returns how a secret names its key."""
    return key_id.removeprefix(ID_PREFIX).replace("-", "")


def place_in(secret: str) -> str:
    """Returns which key a secret names; empty where it is no secret of a key."""
    if len(secret) != _LENGTH or not secret.startswith(SECRET_PREFIX):
        return ""
    return secret[len(SECRET_PREFIX) : _ID_END]


def proves(secret: str, kept: bytes) -> bool:
    """Tells whether a secret is the one that was kept, in a time that tells nothing of it."""
    return hmac.compare_digest(hash_secret(secret), kept)
