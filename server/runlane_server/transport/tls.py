"""TLS from files that may be replaced while the server runs."""

import ssl
from pathlib import Path
from typing import NamedTuple

import grpc
import structlog

_log = structlog.get_logger(__name__)


class TlsFiles(NamedTuple):
    """Where certificates and keys are, PEM.

    Attributes:
        cert: The server's certificate, and those that lead to its authority.
        key: Its private key.
        client_ca: Authorities of clients, each of which must then show a certificate of one.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


class TlsReloader:
    """Gives gRPC the newest files at each handshake, where they have changed and fit together.

    gRPC asks on threads of its own, one at a time. Connections that stand are left alone.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Reads the files.

        Raises:
            OSError: One cannot be read, or they do not fit together.
        """
        self._files = files
        self._seen = self._signature()
        self._first = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Returns what a port is opened with."""
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self.newer,  # type: ignore[arg-type] # None is told to be right by its documentation
            require_client_authentication=self._files.client_ca is not None,
        )

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns what the files hold now; None: what they held when they were read last."""
        try:
            signature = self._signature()
            if signature == self._seen:
                return None
            found = self._read()
        except OSError as error:
            # Half of a pair, or a file that is being written: the next handshake looks again.
            _log.warning("TLS files do not fit, the old ones stay", error=str(error))
            return None
        self._seen = signature
        _log.info("TLS files read")
        return found

    def _signature(self) -> list[tuple[int, int, int]]:
        stats = [path.stat() for path in self._files if path is not None]
        return [(one.st_mtime_ns, one.st_size, one.st_ino) for one in stats]

    def _read(self) -> grpc.ServerCertificateConfiguration:
        cert, key, client_ca = self._files
        try:
            # gRPC would take what does not fit, and then refuse every connection.
            check = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            check.load_cert_chain(cert, key)
            if client_ca is not None:
                check.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            names = ", ".join(str(path) for path in self._files if path is not None)
            raise OSError(f"TLS: {names}: {error.reason or 'no PEM'}") from error
        return grpc.ssl_server_certificate_configuration(
            [(key.read_bytes(), cert.read_bytes())],
            root_certificates=client_ca.read_bytes() if client_ca is not None else None,
        )
