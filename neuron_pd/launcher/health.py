"""One HTTP question to a server on its way up."""

import asyncio
import contextlib
from urllib.parse import urlsplit

TIMEOUT = 5.0  # seconds


async def status(url: str) -> int | None:
    """The HTTP status of a GET; None while nobody answers properly within TIMEOUT seconds."""
    with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.LimitOverrunError):
        async with asyncio.timeout(TIMEOUT):
            return await _get(url)
    return None


async def _get(url: str) -> int:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        writer.write(f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
        protocol, _, rest = line.partition(b" ")
        if not protocol.startswith(b"HTTP/1."):
            raise ValueError("not HTTP")
        return int(rest[:3])
    finally:
        writer.close()
