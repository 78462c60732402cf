"""What a client gets when its request is not served: a status, and OpenAI's error object.

{"error": {"message": ..., "type": ..., "param": null, "code": ...}}
"""

import orjson

from neuron_pd.proxy.http import Header

JSON = (b"content-type", b"application/json")
TYPES = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}


class Refusal(Exception):
    """Answer the request with `status` instead of serving it. `code` is for programs, the message for people.

    `body`, where it is given, is an engine's own answer, passed on as it came.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        headers: tuple[Header, ...] = (),
        body: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = (JSON, *headers) if body is None else headers
        self.body = error_body(status, message, code) if body is None else body


def not_ready(message: str) -> Refusal:
    """503, worth another try soon."""
    return Refusal(503, message, "no_engine_ready", ((b"retry-after", b"1"),))


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    """OpenAI's error object as bytes."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
