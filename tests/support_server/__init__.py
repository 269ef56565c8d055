"""A server as a process of its own, and a client of it that hides nothing."""

from support_server.link import (
    CANCELLED,
    COMPLETED,
    EVENT,
    MODE,
    Link,
    Told,
    dense,
    failed,
    fence_of,
    refused,
    reserve,
    seconds,
    step,
    text,
    told,
    unique,
    within,
)
from support_server.process import ServerProcess

__all__ = [
    "CANCELLED",
    "COMPLETED",
    "EVENT",
    "MODE",
    "Link",
    "ServerProcess",
    "Told",
    "dense",
    "failed",
    "fence_of",
    "refused",
    "reserve",
    "seconds",
    "step",
    "text",
    "told",
    "unique",
    "within",
]
