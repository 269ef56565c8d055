"""How a client proves who it is, and with whom it speaks."""

import ipaddress
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

KEY_VARIABLE: Final = "RUNLANE_API_KEY"
# What a header takes; a line feed at the end of a file is the usual mistake.
_HEADER: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How a connection is secured.

    Attributes:
        ca: A file with the authorities that the server's certificate is checked against, PEM;
            None: those of this machine.
        cert: A file with the client's certificate, PEM, where the server asks for one.
        key: A file with its private key, PEM.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key go together")


def channel_credentials(tls: bool | str | Path | Tls | None) -> grpc.ChannelCredentials | None:
    """Returns what a channel is opened with; None: it is not secured.

    Raises:
        OSError: A file cannot be read.
    """
    if tls is None or tls is False:
        return None
    if tls is True:
        tls = Tls()
    elif not isinstance(tls, Tls):
        tls = Tls(ca=tls)
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca),
        private_key=_read(tls.key),
        certificate_chain=_read(tls.cert),
    )


def call_metadata(
    target: str,
    tls: bool | str | Path | Tls | None,
    api_key: str | None,
    namespace: str,
    client_name: str,
    channel: grpc.aio.Channel | None,
) -> tuple[tuple[str, str], ...]:
    """Returns what every call carries.

    Raises:
        ValueError: The key is none, or others could read it on the way.
    """
    found: tuple[tuple[str, str], ...] = ()
    given = api_key is not None
    key = os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key
    if key:
        if not _HEADER.fullmatch(key):
            where = "api_key" if given else KEY_VARIABLE
            raise ValueError(f"{where} has characters that no key has, such as a line feed")
        if tls is None and channel is None and not _is_here(target):
            raise ValueError(
                f"{target} may be another machine, and the API key could be read on the way: "
                "say how to secure the connection, tls=True or a file of authorities, or "
                "tls=False where something else does"
            )
        found += (("authorization", f"Bearer {key}"),)
    if namespace:
        found += (("runlane-namespace", namespace),)
    if client_name:
        found += (("runlane-client", client_name),)
    return found


def _is_here(target: str) -> bool:
    """Whether an address is one of this machine."""
    if target.startswith("unix:"):
        return True
    host = target.rpartition(":")[0].rpartition("/")[2].strip("[]")
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
