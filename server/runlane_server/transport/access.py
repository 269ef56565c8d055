"""Who may call what: the one table of scopes, and how a call proves who it is."""

import re
from collections.abc import Mapping
from typing import Protocol, TypeAlias

import grpc

from runlane_server.app.keys import NO_GRANT, Grant
from runlane_server.core.errors import Reason, Refused, invalid
from runlane_server.core.keys import DEFAULT_NAMESPACE, SECRET_PREFIX, Scope, scope_bits
from runlane_server.transport.tracing import TRACEPARENT, well_formed

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

OPEN = 0
"""Answered in part without a credential."""

BY_TOKEN = -1
"""A token in the request is all that it takes; credentials are not looked at."""

_READ = scope_bits(Scope.READ)
_SUBMIT = scope_bits(Scope.SUBMIT)
_ANSWER = scope_bits(Scope.ANSWER)
_EXECUTE = scope_bits(Scope.EXECUTE)
_ADMIN = scope_bits(Scope.ADMIN)

SCOPES: Mapping[str, int] = {
    "SessionService/CreateSession": _SUBMIT,
    "SessionService/GetSession": _READ,
    "SessionService/UpdateSession": _SUBMIT,
    "SessionService/DeleteSession": _ADMIN,
    "SessionService/CloseSession": _SUBMIT,
    "SessionService/ReopenSession": _SUBMIT,
    "SessionService/Submit": _SUBMIT,
    "SessionService/WithdrawSubmission": _SUBMIT,
    "SessionService/GetSubmission": _READ,
    "SessionService/InterruptRun": _SUBMIT,
    "SessionService/PauseRun": _SUBMIT,
    "SessionService/UnpauseRun": _SUBMIT,
    "SessionService/AnswerInteraction": _ANSWER,
    "SessionService/CompleteExternal": BY_TOKEN,
    "SessionService/RestoreRun": _SUBMIT,
    "SessionService/GetLiveState": _READ,
    "SessionService/StreamEvents": _READ,
    "SessionService/ListAgents": _READ,
    "HistoryService/ListSessions": _READ,
    "HistoryService/ListRuns": _READ,
    "HistoryService/ListChildRuns": _READ,
    "HistoryService/GetRun": _READ,
    "HistoryService/WaitRun": _READ,
    "HistoryService/ListSubmissions": _READ,
    "HistoryService/ListEvents": _READ,
    "HistoryService/ListMessages": _READ,
    "HistoryService/StreamMessages": _READ,
    "HistoryService/ListForkPoints": _READ,
    "HistoryService/GetHistoryAtRun": _READ,
    "HistoryService/ListToolCalls": _READ,
    "HistoryService/ListInteractions": _READ,
    "HistoryService/ForkSession": _SUBMIT,
    "HistoryService/GetLineage": _READ,
    "HistoryService/StreamRunEvents": _READ,
    "HistoryService/ExportSession": _READ,
    "ExecutorService/PollActivation": _EXECUTE,
    "ExecutorService/DrainExecutor": _EXECUTE,
    "ExecutorService/Heartbeat": _EXECUTE,
    "ExecutorService/WatchActivation": _EXECUTE,
    "ExecutorService/Commit": _EXECUTE,
    "ExecutorService/StreamModelContext": _EXECUTE,
    "ExecutorService/PublishDeltas": _EXECUTE,
    "AdminService/ListStalledRuns": _ADMIN,
    "AdminService/SettleRun": _ADMIN,
    "AdminService/CreateKey": _ADMIN,
    "AdminService/ListKeys": _ADMIN,
    "AdminService/RevokeKey": _ADMIN,
    "AdminService/GetOverview": _ADMIN,
    "AdminService/ListExecutors": _ADMIN,
    "AdminService/StreamFeed": _ADMIN,
    "AdminService/ImportSession": _ADMIN,
    "ServerService/GetServerInfo": OPEN,
}
"""What each RPC needs. Whoever declares an RPC decides it here, or the server does not start."""

EXEMPT = frozenset(
    {
        # Input that was accepted goes on, whatever comes after it.
        *(path for path, needed in SCOPES.items() if needed == _EXECUTE),
        "SessionService/AnswerInteraction",
        "SessionService/CompleteExternal",
        # Whoever operates a namespace must get at its keys when its callers are too many.
        "AdminService/CreateKey",
        "AdminService/RevokeKey",
        "ServerService/GetServerInfo",
    }
)
"""RPCs that no quota of a namespace counts or refuses."""

NAMESPACE_KEY = "runlane-namespace"
_CLIENT = "runlane-client"
_AUTHORIZATION = "authorization"
_BEARER = "bearer "
_CLIENT_NAME = re.compile(r"[ -~]{1,64}")
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_UNPRINTED = re.compile(r"[^ -~]")
_ACTOR_MAX = 64

NOBODY = Grant("client", (DEFAULT_NAMESPACE,), 0)
"""What a call without a credential has where one is asked for."""


class Admitted(Protocol):
    """Where secrets are looked up."""

    def find(self, secret: str, /) -> Grant | None:
        """Returns what a secret opens; None where it opens nothing."""


class Tokens(Protocol):
    """Where tokens of an issuer are proved."""

    def known(self, token: str, /) -> Grant | None:
        """Returns what a token opens that was proved before."""

    async def prove(self, token: str, /) -> None:
        """Proves a token, so that it is known, or refuses it."""


class Identity(Protocol):
    """Tells who calls."""

    def grant(
        self, context: Context, bearer: str | None, client: str, needed: int, /
    ) -> tuple[Grant, str] | None:
        """Returns what a caller has, and its actor; None: `prove` first; or refuses it."""

    async def prove(self, bearer: str, /) -> None:
        """Proves a bearer, so that `grant` knows it; or refuses it."""


class Anybody:
    """Nobody is asked for a credential; `certified`: TLS has asked for a certificate."""

    def __init__(self, *, certified: bool = False) -> None:
        self._certified = certified

    def grant(
        self, context: Context, _bearer: str | None, client: str, _needed: int, /
    ) -> tuple[Grant, str]:
        """Returns all; the actor is the subject of the certificate, else what it calls itself."""
        if self._certified:
            return NO_GRANT, subject(context) or client
        return NO_GRANT, client

    async def prove(self, _bearer: str, /) -> None:
        """Proves nothing, which nobody asks for."""


class Bearers:
    """API keys, and tokens of an issuer where there is one."""

    def __init__(self, keys: Admitted, tokens: Tokens | None = None) -> None:
        self._find = keys.find
        self._tokens = tokens

    def grant(
        self, _context: Context, bearer: str | None, _client: str, needed: int, /
    ) -> tuple[Grant, str] | None:
        """Returns what a bearer has, or refuses it; where nothing is needed none may be sent."""
        if needed < 0:
            return NOBODY, "client"
        if bearer is None:
            if needed:
                raise Refused(
                    Reason.CREDENTIAL_MISSING, "the call needs `authorization: Bearer` and a key"
                )
            return NOBODY, "client"
        grant = self._find(bearer)
        if grant is None:
            if self._tokens is None or bearer.startswith(SECRET_PREFIX):
                raise unknown()
            grant = self._tokens.known(bearer)
            if grant is None:
                return None
        if needed & ~grant.scopes:
            scope = scope_name(needed)
            raise Refused(Reason.SCOPE_MISSING, f"the call needs the scope {scope!r}", scope=scope)
        return grant, grant.actor

    async def prove(self, bearer: str, /) -> None:
        """Proves a token of the issuer, or refuses it."""
        if self._tokens is None:
            raise unknown()
        await self._tokens.prove(bearer)


def unknown() -> Refused:
    """Returns the refusal of a credential; it does not say what is wrong with it."""
    return Refused(
        Reason.CREDENTIAL_INVALID, "the credential is unknown, was revoked, or has expired"
    )


def subject(context: Context) -> str:
    """Returns the actor that a client certificate names; empty without one."""
    names = context.auth_context()
    for key in ("x509_common_name", "x509_subject_alternative_name", "x509_subject"):
        for name in names.get(key) or ():
            text = _UNPRINTED.sub("?", name.decode("utf-8", "replace"))[:_ACTOR_MAX]
            if text:
                return f"client:{text}"
    return ""


def said(context: Context) -> tuple[str | None, str, str | None, str]:
    """Returns what the metadata of a call say: bearer, namespace, name of the client, trace."""
    trace = ""
    bearer: str | None = None
    namespace = ""
    client: str | None = "client"
    for key, value in context.invocation_metadata() or ():
        if key == _AUTHORIZATION:
            bearer = _bearer(value)
        elif key == NAMESPACE_KEY:
            namespace = str(value)
        elif key == _CLIENT:
            client = None
            if isinstance(value, str) and _CLIENT_NAME.fullmatch(value):
                client = f"client:{value}"
        elif key == TRACEPARENT:
            trace = well_formed(value)
    return bearer, namespace, client, trace


def _bearer(value: str | bytes) -> str:
    """Returns what an authorization header bears; one of another kind proves nothing."""
    if isinstance(value, str) and value[:7].lower() == _BEARER:
        return value[7:].strip()
    return ""


def namespace_of(asked: str, grant: Grant, needed: int) -> str:
    """Returns the namespace of a call: the one it names, else the first of its credential."""
    if not asked or asked == grant.namespaces[0] or grant is NOBODY:
        return grant.namespaces[0]
    if grant is NO_GRANT:
        raise invalid(NAMESPACE_KEY, f"must be absent or `{DEFAULT_NAMESPACE}`")
    if not _NAMESPACE.fullmatch(asked):
        raise invalid(NAMESPACE_KEY, "must be the name of a namespace")
    if not grant.opens(asked):
        raise Refused(
            Reason.SCOPE_MISSING,
            "the credential does not open the namespace",
            scope=scope_name(needed or _READ),
            namespace=asked,
        )
    return asked


def scope_name(bits: int) -> str:
    """Returns the name of the one scope in a set."""
    return Scope(bits.bit_length() - 1).name.lower()


def wrong_client() -> Refused:
    """Returns the refusal of a client's name."""
    return invalid(_CLIENT, "must be 1 to 64 printable ASCII characters")
