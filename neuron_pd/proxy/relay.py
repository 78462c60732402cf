"""Passing an engine's answer to the client: its status, headers and bytes, minus `kv_transfer_params`."""

from collections.abc import Callable, Sequence

from neuron_pd.proxy.errors import error_body
from neuron_pd.proxy.http import Header, Responder, Response, UpstreamError
from neuron_pd.proxy.legs import answer_headers
from neuron_pd.proxy.scrub import Scrubber, scrub

WHOLE_BYTES = 1024 * 1024
EVENT_STREAM = b"text/event-stream"


class BrokenOff(Exception):
    """The engine's answer broke off after part of it had reached the client, who has been told."""


def is_stream(response: Response) -> bool:
    return (response.get(b"content-type") or b"").startswith(EVENT_STREAM)


async def relay(
    response: Response, responder: Responder, extra: Sequence[Header], learn: Callable[[bytes], None] | None = None
) -> None:
    """Send the answer on, `extra` headers added; `learn` sees the engine's bytes after the client got them.

    Raises UpstreamError while nothing has reached the client, BrokenOff afterwards. An answer of a known, small length
    is read whole, so that it keeps a length; anything else is passed on chunk by chunk, as fast as the client reads.
    """
    length = response.get(b"content-length")
    headers = [*answer_headers(response), *extra]
    if length is not None and int(length) <= WHOLE_BYTES:
        body = await response.read()
        responder.send(response.status, headers, scrub(body))
        if learn is not None:
            learn(body)
        return
    responder.start(response.status, headers)
    await _stream(response, responder, learn)


async def _stream(response: Response, responder: Responder, learn: Callable[[bytes], None] | None) -> None:
    scrubber = Scrubber()
    write, clean = responder.write, scrubber.feed
    seen = b"\n"

    def pass_on(data: bytes, last: bool) -> None:
        nonlocal seen
        write(clean(data) + scrubber.rest() if last else clean(data), last)
        if data:
            seen = data
            if learn is not None:
                learn(data)

    responder.follow(response)
    try:
        await response.pipe(pass_on)
    except UpstreamError as error:
        if is_stream(response) and seen.endswith(b"\n"):
            responder.write(
                b"data: " + error_body(502, "the decode engine's answer broke off", "decode_lost") + b"\n\n"
            )
        responder.abort()
        raise BrokenOff(str(error)) from error
