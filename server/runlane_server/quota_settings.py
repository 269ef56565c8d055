"""Settings of quotas: the tables `[[quota]]`, each of one namespace."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from runlane_server.core.quotas import Quota

if TYPE_CHECKING:
    from runlane_server.settings import Settings

_NAMES = [one.name for one in fields(Quota)]

Amount = Annotated[int, Field(ge=0, le=2**53)]
"""A limit; 0: none."""


class QuotaConfig(BaseModel):
    """What one namespace may do and have; what is not said is as for all others."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    namespace: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    """Whose quota it is."""
    requests_per_second: Amount | None = None
    """Calls. 0: no limit, as with all that follow."""
    events_per_second: Amount | None = None
    """Events that its calls append."""
    burst_seconds: int | None = Field(default=None, ge=1, le=3600)
    """So many seconds' worth of a rate may come at once."""
    sessions_max: Amount | None = None
    """Sessions in the store."""
    open_streams_max: Amount | None = None
    """Event streams that are open on one server."""
    stored_bytes_max: Amount | None = None
    """Bytes of its messages, its waiting input and its events."""


def default_quota(settings: "Settings") -> Quota:
    """Returns the quota of a namespace that has no table."""
    return Quota(
        settings.quota_requests_per_second,
        settings.quota_events_per_second,
        settings.quota_burst_seconds,
        settings.quota_sessions_max,
        settings.quota_open_streams_max,
        settings.quota_stored_bytes_max,
    )


def own_quotas(settings: "Settings") -> dict[str, Quota]:
    """Returns the quotas of the namespaces that have a table."""
    default = default_quota(settings)
    return {
        one.namespace: Quota(
            *(getattr(default if getattr(one, name) is None else one, name) for name in _NAMES)
        )
        for one in settings.quota
    }


def check_quotas(tables: Sequence[QuotaConfig]) -> None:
    """Checks that each namespace has one quota.

    Raises:
        ValueError: One has two.
    """
    names = [one.namespace for one in tables]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two [[quota]] tables are of the namespace {name!r}")
