"""The calls of a client that make, list and revoke API keys."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from pydantic import Field

from runlane import _convert as convert
from runlane._calls import Caller
from runlane._content import Record
from runlane._enums import Scope, member, number_of
from runlane._models import Page
from runlane._time import to_datetime
from runlane.v1 import admin_service_pb2 as pb
from runlane.v1 import api_key_pb2


class ApiKey(Record):
    """An API key, without what proves it.

    Attributes:
        name: Whom it stands for, in the `actor` of events as `client:` and this name.
        namespace: The one that it opens; `*`: every one.
        scopes: What it may do; no scope holds another one.
        last_characters: Of its secret.
        expire_time: When it ends; None: never.
        revoke_time: When it was revoked; None: it was not.
    """

    key_id: str
    name: str
    namespace: str
    scopes: tuple[Scope, ...]
    last_characters: str
    create_time: datetime | None
    expire_time: datetime | None
    revoke_time: datetime | None


class CreatedKey(Record):
    """A key that was made.

    Attributes:
        secret: What proves it, told this once; empty where an earlier call with the same
            request id was told it. It is left out of the representation.
        replayed: Whether the answer is that of an earlier call.
    """

    key: ApiKey
    secret: str = Field(repr=False)
    replayed: bool


class AccessCalls:
    """API keys. All of it needs the scope admin."""

    _caller: Caller

    async def create_key(
        self,
        name: str,
        scopes: Iterable[Scope | str],
        *,
        namespace: str = "",
        lifetime: timedelta | None = None,
        request_id: str | None = None,
    ) -> CreatedKey:
        """Makes an API key.

        Args:
            name: Whom it stands for.
            scopes: What it may do, such as `read`; at least one.
            namespace: The one that it opens; empty: that of this client's credential; `*`:
                every one.
            lifetime: How long it lives; None: until it is revoked.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            ScopeMissing: This client's credential does not open the namespace.
            QuotaExceeded: The namespace has as many keys as it may have.
        """
        span = None
        if lifetime is not None:
            span = Duration()
            span.FromTimedelta(lifetime)
        request = pb.CreateKeyRequest(
            name=name,
            namespace=namespace,
            scopes=[
                api_key_pb2.ApiKey.Scope.ValueType(number_of(Scope, scope)) for scope in scopes
            ],
            expire_duration=span,
            request_id=request_id or "",
        )
        answer = await self._caller.unary(self._caller.stubs.admin.CreateKey, request)
        return CreatedKey(key=_key(answer.key), secret=answer.secret, replayed=answer.replayed)

    async def list_keys(
        self, *, include_ended: bool = False, after: str | None = None, limit: int = 50
    ) -> Page[ApiKey]:
        """Lists the API keys of the namespaces that this credential opens, oldest first.

        Args:
            include_ended: Also those that have expired or were revoked.
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.
        """
        request = pb.ListKeysRequest(
            page_size=limit, page_token=after or "", include_ended=include_ended
        )
        answer = await self._caller.unary(self._caller.stubs.admin.ListKeys, request)
        return convert.page(map(_key, answer.keys), answer.next_page_token)

    async def revoke_key(self, key_id: str) -> ApiKey:
        """Ends an API key, and what is open under it; again changes nothing.

        Raises:
            KeyNotFound: There is no such key in the namespaces that this credential opens.
        """
        answer = await self._caller.unary(
            self._caller.stubs.admin.RevokeKey, pb.RevokeKeyRequest(key_id=key_id)
        )
        return _key(answer.key)


def _key(key: api_key_pb2.ApiKey) -> ApiKey:
    return ApiKey(
        key_id=key.key_id,
        name=key.name,
        namespace=key.namespace,
        scopes=tuple(member(Scope, scope) for scope in key.scopes),
        last_characters=key.last_characters,
        create_time=to_datetime(key, "create_time"),
        expire_time=to_datetime(key, "expire_time"),
        revoke_time=to_datetime(key, "revoke_time"),
    )
