"""The releases that this version of neuron-pd was tested on: vLLM from the first to the last, and NIXL from one on."""

import re
from typing import Final

TESTED_VLLM: Final = ((0, 29), (0, 32))
MINIMUM_NIXL: Final = "1.4.1"


def is_tested(version: str) -> bool:
    """Whether vLLM `version` is within the tested range. One without a release number is not."""
    low, high = TESTED_VLLM
    found = release(version)
    return found is not None and low <= found <= high


def release(version: str) -> tuple[int, ...] | None:
    """(0, 32) of "0.32.1+cpu"; None for a version without a release number."""
    try:
        return tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return None


def tested_releases() -> str:
    """The range in words: "0.32", or "0.29 to 0.32"."""
    low, high = (".".join(map(str, end)) for end in TESTED_VLLM)
    return low if low == high else f"{low} to {high}"


def is_old_nixl(version: str) -> bool:
    """Whether NIXL `version` is older than MINIMUM_NIXL. One without a number is taken not to be."""
    found = _numbers(version)
    return bool(found) and found < _numbers(MINIMUM_NIXL)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
