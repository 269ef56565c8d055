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
    rest,
    seconds,
    step,
    text,
    told,
    unique,
    until,
    within,
)
from support_server.process import ServerProcess
from support_server.proxy import Proxy
from support_server.rows import ask

__all__ = [
    "CANCELLED",
    "COMPLETED",
    "EVENT",
    "MODE",
    "Link",
    "Proxy",
    "ServerProcess",
    "Told",
    "ask",
    "dense",
    "failed",
    "fence_of",
    "refused",
    "reserve",
    "rest",
    "seconds",
    "step",
    "text",
    "told",
    "unique",
    "until",
    "within",
]
