"""Ids that the client makes."""

from uuid_utils import uuid7


def new_request_id() -> str:
    """Returns a request id: a UUIDv7, so that the store appends it to its index."""
    return str(uuid7())
