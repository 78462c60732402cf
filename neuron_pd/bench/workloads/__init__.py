"""What clients say in a sweep: conversations that are generated, or that a file describes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuron_pd.bench.workloads import synthetic
from neuron_pd.bench.workloads.conversations import Conversations
from neuron_pd.bench.workloads.dialogue import Dialogue, History, Message, Sizes, Turn, Workload
from neuron_pd.bench.workloads.generated import FILETYPE, Generated
from neuron_pd.bench.workloads.synthetic import Synthetic
from neuron_pd.bench.workloads.trace import FIELDS, Trace
from neuron_pd.errors import UsageError

__all__ = ["PLAIN", "SYNTHETIC", "Dialogue", "History", "Message", "Sizes", "Turn", "Workload", "workload"]

PLAIN, AGENT = "plain", "agent"
SYNTHETIC = {PLAIN: synthetic.plain, AGENT: synthetic.agent}


def workload(name: str, time_scale: float = 1.0) -> Workload:
    """The workload of that name, or the one in the file at that path, whose content says which kind it is.

    UsageError when there is none, or it cannot be read.
    """
    if name in SYNTHETIC:
        return Synthetic(SYNTHETIC[name])
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        names = ", ".join(SYNTHETIC)
        raise UsageError(f"--workload {name} is none of {names}, and no readable file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text") from None
    return _parsed(text, path, time_scale)


def _parsed(text: str, path: Path, time_scale: float) -> Workload:
    try:
        body = json.loads(text)
    except ValueError:
        body = _json_lines(text, path)
    if isinstance(body, Mapping) and body.get("filetype") == FILETYPE:
        return Generated(body, path)
    items = [body] if isinstance(body, Mapping) else body
    if not isinstance(items, list) or not items or not isinstance(items[0], Mapping):
        raise UsageError(f"{path} is no workload: see docs/bench.md for the kinds of files that are")
    return Trace(items, path, time_scale) if FIELDS[-1] in items[0] else Conversations(items, path)


def _json_lines(text: str, path: Path) -> list[Any]:
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            found += [json.loads(line)] if line.strip() else []
        except ValueError:
            raise UsageError(f"{path}, line {number} is not JSON") from None
    return found
