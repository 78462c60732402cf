"""TLS on both sides: the proxy's own certificate, and the authorities that vouch for the engines'."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from neuron_pd.errors import UsageError


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. `cert` (the chain) and `key` of the proxy; `engine_ca`: authorities, else the system's."""

    cert: Path | None = None
    key: Path | None = None
    engine_ca: Path | None = None

    def for_clients(self) -> ssl.SSLContext | None:
        """How clients are spoken to; None for plain HTTP. UsageError when the files are not what they should be."""
        if self.cert is None or self.key is None:
            if self.cert or self.key:
                raise UsageError("--tls-cert and --tls-key go together: give both, or neither")
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        self.load(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Read the certificate, again: connections from now on see the new one. UsageError when it cannot be used."""
        assert self.cert is not None
        try:
            context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            said = error.strerror or getattr(error, "reason", "") or error
            raise UsageError(f"--tls-cert {self.cert} and --tls-key {self.key} cannot be used: {said}") from error

    def for_engines(self) -> ssl.SSLContext:
        """How engines at https:// are checked."""
        try:
            return ssl.create_default_context(cafile=self.engine_ca)
        except OSError as error:
            said = error.strerror or getattr(error, "reason", "") or error
            raise UsageError(f"--engine-ca {self.engine_ca} holds no certificates: {said}") from error
