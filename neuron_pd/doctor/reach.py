"""Whether there is a way to a port, as far as this machine can tell."""

import errno
import socket
from typing import Final

from neuron_pd.hosts.addresses import EVERYWHERE, LOOPBACK

NOWHERE: Final = (*LOOPBACK, *EVERYWHERE)  # what means something on an engine's own machine only
REFUSED: Final = "refused"
SECONDS: Final = 3.0


def reach(host: str, port: int, seconds: float = SECONDS) -> str:
    """Why there is none: "" where something listens, REFUSED where the host answers that nothing does."""
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except ConnectionRefusedError:
        return REFUSED
    except socket.gaierror as error:
        return f"the name does not resolve ({error.strerror})"
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except OSError as error:
        return error.strerror or errno.errorcode.get(error.errno or 0, str(error))
    return ""


def is_here(host: str) -> bool:
    """Whether it is an address of this machine, which a server can listen on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as here:
            here.bind(address)
    except OSError:
        return False
    return True
