"""Who may use the proxy, and whose conversations are whose.

With a key file, a request needs one of its keys, as `Authorization: Bearer …` or `x-api-key`. Without one the proxy is
open, and clients are told apart by whatever key they send.
"""

import hmac
import logging
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Protocol

from neuron_pd.errors import UsageError
from neuron_pd.proxy.errors import Refusal
from neuron_pd.proxy.http import Request
from neuron_pd.proxy.keyfile import KeyFile, read_keys

log = logging.getLogger("neuron_pd.proxy")

BEARER = b"bearer "


class Tenant(NamedTuple):
    """Whose request it is: `name` scopes conversations. `models`: names or patterns it may use, None for all."""

    name: bytes
    models: tuple[str, ...] | None = None

    def require(self, model: str) -> None:
        """Refusal 404, as for a model that does not exist, for one that is not this tenant's."""
        if not self.may_use(model):
            message = f"the model {model[:200]!r} does not exist or this key may not use it"
            raise Refusal(404, message, "model_not_found")

    def may_use(self, model: str) -> bool:
        return self.models is None or any(fnmatchcase(model, pattern) for pattern in self.models)


class Tenants(Protocol):
    def of(self, request: Request) -> Tenant:
        """Refusal 401 for a request that may not come in."""

    def refresh(self) -> None:
        """Take over what has changed."""


class Anyone:
    """No keys: everyone may come in."""

    def of(self, request: Request) -> Tenant:
        return Tenant(request.get(b"authorization") or request.get(b"x-api-key") or b"")

    def refresh(self) -> None:
        """Nothing changes."""


class Keys:
    """The keys of a file, read again when it changes. A file that cannot be read leaves the last good keys."""

    def __init__(self, path: Path) -> None:
        """UsageError for a file that cannot be read or is not one of keys."""
        self._path = path
        self._version = _version(path)
        self._take_over(read_keys(path))

    def of(self, request: Request) -> Tenant:
        given = _given(request)
        if given:
            digest = self._file.digest(given)
            found = self._tenants.get(digest)
            # A dictionary compares what an attacker cannot choose: the digest depends on the file's salt.
            if found is not None and hmac.compare_digest(found[0], digest):
                return found[1]
        message = "incorrect API key" if given else "an API key is needed: send it as Authorization: Bearer KEY"
        raise Refusal(401, message, "invalid_api_key", ((b"www-authenticate", b"Bearer"),))

    def refresh(self) -> None:
        version = _version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self._take_over(read_keys(self._path))
        except UsageError as error:
            log.warning("the API keys stay as they were: %s", error)
        else:
            log.info("%d API keys read", len(self._tenants))

    def _take_over(self, file: KeyFile) -> None:
        self._file = file
        self._tenants = {
            entry.digest: (entry.digest, Tenant(b"tenant " + entry.tenant.encode(), entry.models))
            for entry in file.entries
        }


def _version(path: Path) -> tuple[int, int, int]:
    """What changes when a file does; zeros while there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - nothing of a Path is needed, and this runs once a second
    except OSError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_ino, status.st_size


def _given(request: Request) -> bytes:
    header = request.get(b"authorization") or b""
    if header[: len(BEARER)].lower() == BEARER:
        return header[len(BEARER) :].strip()
    return request.get(b"x-api-key") or b""
