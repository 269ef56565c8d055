"""Why a server does not answer, as far as its address can tell."""

import contextlib
import ipaddress
import socket
import ssl

import runlane

_SECONDS = 2.0


def unreached(target: str, tls: runlane.Tls | None, code: str) -> str:
    """Says what is in the way of a call that got no word of a server, and what to do about it.

    Args:
        target: Where it went.
        tls: How the connection was to be secured; None: not at all.
        code: The gRPC status code that it ended with.
    """
    address = _host_and_port(target)
    if address is None or not _listens(address):
        return _nobody(target)
    spoken = _handshake(address, _context(None))
    if spoken is None:
        return (
            f"something listens at {target}, and says nothing ({code}): it hangs, or is no server "
            "of Runlane"
        )
    if tls is None:
        if spoken:
            return (
                f"the server at {target} speaks TLS: name a file with its authorities with "
                "--tls-ca or RUNLANE_TLS_CA, or say `system`"
            )
        return f"what answers at {target} does not speak as a server of Runlane ({code})"
    if not spoken:
        return (
            f"what answers at {target} does not speak TLS; leave --tls-ca and RUNLANE_TLS_CA out "
            "if that is right"
        )
    try:
        context = _context(tls)
    except ssl.SSLError:
        return f"{tls.ca} holds no certificate of an authority (--tls-ca or RUNLANE_TLS_CA)"
    try:
        _handshake(address, context)
    except ssl.SSLCertVerificationError as error:
        where = "this machine" if tls.ca is None else tls.ca
        return (
            f"the certificate of {target} is not good: {error.verify_message} (--tls-ca or "
            f"RUNLANE_TLS_CA names its authorities; asked were those of {where})"
        )
    cure = "does it take that of --tls-cert?" if tls.cert else "--tls-cert and --tls-key show one"
    return (
        f"the server at {target} speaks TLS, and does not go on with it ({code}): it may ask for "
        f"the certificate of a client; {cure}"
    )


def _nobody(target: str) -> str:
    if is_here(target):
        return (
            f"no server answers at {target}; start one with `runlane serve --listen {target}`, "
            "or name another with --target"
        )
    return (
        f"no server answers at {target}; check that it runs there and that the address is "
        "right. A server listens on its own machine alone unless its settings say otherwise: "
        "then go through a tunnel. --target names another"
    )


def is_here(target: str) -> bool:
    """Whether an address is one of this machine, where a server can be started."""
    if target.startswith("unix:"):
        return True
    host = target.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _host_and_port(target: str) -> tuple[str, int] | None:
    """Returns where TCP goes; None: a socket file, or a name that gRPC alone can resolve."""
    host, _, port = target.removeprefix("dns:").lstrip("/").rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or host.partition(":")[0] in {"unix", "xds", "vsock"}:
        return None
    return host, int(port)


def _listens(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address, _SECONDS):
        return True
    return False


def _context(tls: runlane.Tls | None) -> ssl.SSLContext:
    """Returns how a certificate is checked; None: not at all."""
    context = ssl.create_default_context(cafile=tls.ca if tls is not None else None)
    context.set_alpn_protocols(["h2"])
    if tls is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _handshake(address: tuple[str, int], context: ssl.SSLContext) -> bool | None:
    """Tells whether TLS is spoken there; None: nothing is said.

    Raises:
        ssl.SSLCertVerificationError: The certificate is not good.
    """
    try:
        with (
            socket.create_connection(address, _SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=address[0]),
        ):
            return True
    except ssl.SSLCertVerificationError:
        raise
    except (ssl.SSLError, ConnectionError):
        return False
    except OSError:
        return None
