"""Everything neuron-pd raises on purpose.

    NeuronPDError
    ├── UsageError                what a person typed or configured: one line, exit status 2, nothing started
    │   ├── PortInUse
    │   └── MissingDependency
    ├── TransferParamsError       kv_transfer_params that cannot be what they claim: recompute, and count it
    └── EngineError               an engine did not do what it was asked: the turn falls back where it can
        ├── EngineUnavailable     no answer: refused, reset, timed out
        └── EngineStartError      a process that `up` started died, or never became healthy

The message of a `UsageError` is the whole message that a person sees: it says what is wrong and what to change.
"""


class NeuronPDError(Exception):
    """Base of every error that neuron-pd raises on purpose."""


class UsageError(NeuronPDError):
    """Wrong input or configuration. `str(error)` is one line: what is wrong, and what to change."""


class PortInUse(UsageError):
    """A port that a role needs is taken; the message names the port and its holder."""


class MissingDependency(UsageError):
    """A package that this command needs cannot be imported; the message says what to install."""


class TransferParamsError(NeuronPDError):
    """`kv_transfer_params` that do not hold together. `reason` is a metric label."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class EngineError(NeuronPDError):
    """An engine did not do what it was asked."""


class EngineUnavailable(EngineError):
    """An engine gave no answer: refused, reset or timed out."""


class EngineStartError(EngineError):
    """A supervised process died or never became healthy; the message names its log."""
