"""Settings of an issuer of tokens: the table `[jwt]`."""

import ipaddress
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

# Those of a public key alone: what the server verifies with must not be fit to sign with.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]


class JwtConfig(BaseModel):
    """Whose tokens are taken, and what their claims mean."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    issuer: str = Field(min_length=1)
    """What `iss` must be."""
    audience: str = Field(min_length=1)
    """What `aud` must be, or hold."""
    jwks: str = Field(min_length=1)
    """Where the issuer's public keys are: https://, or a file."""
    algorithms: tuple[Algorithm, ...] = Field(("RS256", "ES256"), min_length=1)
    """What a token may be signed with."""
    name_claim: str = "sub"
    """The claim that names the caller in events."""
    scope_claim: str = "scope"
    """The claim with the scopes: a list, or words in one text."""
    scope_prefix: str = "runlane:"
    """What our scopes begin with there."""
    namespace_claim: str = "runlane_namespace"
    """The claim with the namespace: a text, or a list of those that it opens, the first of which
    is that of a call that names none."""
    namespace: Annotated[str, Field(pattern=r"^$|^[a-z0-9][a-z0-9._-]{0,62}$")] = ""
    """The namespace of tokens without that claim; empty: they are refused."""

    @field_validator("jwks")
    @classmethod
    def _safe(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme == "http" and not _is_here(parts.hostname or ""):
            raise ValueError("keys that come over http:// could be anybody's; use https://")
        return value

    @property
    def is_url(self) -> bool:
        """Whether the keys are fetched, and not read from a file."""
        return self.jwks.startswith(("https://", "http://"))


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
