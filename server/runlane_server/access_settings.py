"""Settings of who is let in: the table `[jwt]`, and what must hold together."""

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

if TYPE_CHECKING:
    from runlane_server.settings import Settings

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


def check_access(settings: "Settings", beyond: Sequence[str]) -> None:
    """Checks that whoever reaches a server is asked who they are, and not overheard.

    Args:
        settings: What is set.
        beyond: The addresses that other machines reach.

    Raises:
        ValueError: They are not, and `insecure_listen` does not allow it; or what is set does
            not go together.
    """
    if (settings.auth == "jwt") != (settings.jwt is not None):
        raise ValueError('auth = "jwt" and the table [jwt] go together')
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ValueError("tls_cert and tls_key go together")
    if settings.tls_client_ca and not settings.tls_cert:
        raise ValueError("tls_client_ca needs tls_cert and tls_key")
    if settings.channelz and settings.auth != "none":
        raise ValueError("channelz shows all connections to whoever asks: not with auth")
    for agent in settings.agent:
        if settings.auth == "none" and agent.namespaces != ("default",):
            raise ValueError(f"agent {agent.name!r}: without auth, default is the only namespace")
    lacks = missing_guards(settings)
    if beyond and lacks and not settings.insecure_listen:
        raise ValueError(
            f"{beyond[0]} can be reached from other machines, and {', and '.join(lacks)}; "
            "to listen there all the same say --insecure-listen"
        )


def missing_guards(settings: "Settings") -> list[str]:
    """Says what a server lacks that other machines reach."""
    lacks = []
    if settings.auth == "none" and not settings.tls_client_ca:
        lacks.append('nobody is asked for a credential (set auth = "keys")')
    if not settings.tls_cert:
        lacks.append("what is said can be read on the way (set tls_cert and tls_key)")
    return lacks
