"""The vLLM releases that this version of neuron-pd was tested on, first and last."""

TESTED_VLLM = ((0, 29), (0, 32))


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
