"""HTTP/1.1 on asyncio protocols over llhttp (`httptools`): a server, and a client with a keep-alive pool.

The rest of the proxy sees `Request`, `Responder`, `Client` and `Response`, and nothing of the parser or of the
transports.
"""

from neuron_pd.proxy.http.client import Answer, Client, Response, Timeouts
from neuron_pd.proxy.http.message import (
    ConnectFailed,
    Header,
    Origin,
    Request,
    StaleConnection,
    TimedOut,
    UpstreamError,
    UpstreamLost,
)
from neuron_pd.proxy.http.responder import Responder
from neuron_pd.proxy.http.server import Handler, Limits, Server, serve

__all__ = [
    "Answer",
    "Client",
    "ConnectFailed",
    "Handler",
    "Header",
    "Limits",
    "Origin",
    "Request",
    "Responder",
    "Response",
    "Server",
    "StaleConnection",
    "TimedOut",
    "Timeouts",
    "UpstreamError",
    "UpstreamLost",
    "serve",
]
