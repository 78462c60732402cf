"""One question over HTTP, with a limit on its time and size."""

import http.client
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

MAX_BYTES: Final = 4 * 2**20
# The environment's proxies are for the outside; engines are asked directly.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class CannotReach(Exception):
    """No answer; the message says why in a few words."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; None where it is not."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def date(self) -> float | None:
        """The server's clock, in seconds since the epoch, to the second; None where it does not say."""
        try:
            return parsedate_to_datetime(self.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return None


def ask(
    url: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None, seconds: float = 10.0
) -> Answer:
    """GET, or POST a JSON body. Any status is an answer; CannotReach where there is none within `seconds`."""
    data = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if data else {}
    request = urllib.request.Request(url + path, data=data, headers={**given, **(headers or {})})
    try:
        try:
            response = _OPENER.open(request, timeout=seconds)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, names, _body(response, time.monotonic() + seconds))
    except urllib.error.URLError as error:
        raise CannotReach(_why(error.reason, seconds)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CannotReach(_why(error, seconds)) from error


def _body(response: Any, deadline: float) -> bytes:
    """The body as far as MAX_BYTES; TimeoutError for one that trickles in."""
    body = b""
    while (piece := response.read1(MAX_BYTES - len(body))) and len(body) < MAX_BYTES:
        body += piece
        if time.monotonic() > deadline:
            raise TimeoutError
    return body


def _why(error: object, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return f"the name does not resolve ({error.strerror})"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted here ({error.verify_message}): SSL_CERT_FILE names the authority's"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
