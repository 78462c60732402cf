"""How long the end of a server may take, in seconds, whatever runs it."""

from typing import Final

# A proxy, and an engine's pod, that is to go gets no new turns; those in flight end meanwhile.
DRAIN_SECONDS: Final = 120
STOP_SECONDS: Final = 60  # for the server itself
