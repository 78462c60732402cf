"""Addresses that mean something without being looked up, and the port on which clients look for the proxy."""

from typing import Final

HERE: Final = "127.0.0.1"
LOOPBACK: Final = (HERE, "localhost", "::1")
ANY: Final = "0.0.0.0"
EVERYWHERE: Final = ("", ANY, "::", "*")  # to listen on, and no address to connect to
PROXY_PORT: Final = 8000
