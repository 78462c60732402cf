"""What the trials on real engines share: their common options, two engines and a proxy, and how a command ends."""

import argparse
import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from neuron_pd.cli import INTERRUPTED
from neuron_pd.errors import NeuronPDError
from neuron_pd.launcher.topology import Topology, cpu_topology
from neuron_pd.models import model_dir

MODEL = "tiny"
Found = dict[str, Any]


def add_options(parser: argparse.ArgumentParser, name: str, first_port: int) -> None:
    """`--json`, `--run-dir` and `--first-port`."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was found")
    parser.add_argument("--run-dir", type=Path, default=Path("results") / name, help="logs (default: %(default)s)")
    parser.add_argument("--first-port", type=int, default=first_port, help="and those above (default: %(default)s)")


def topology(options: argparse.Namespace, **engine: Any) -> Topology:
    """The tiny model on a P that keeps no prefix cache, a D and a proxy, on five ports from the first one on."""
    port = options.first_port
    given = {"served_name": MODEL, "kv_cache_gib": 1, "prefill_prefix_caching": False, "run_dir": options.run_dir}
    return cpu_topology(
        model_dir(MODEL),
        proxy_port=port,
        prefill_port=port + 1,
        decode_port=port + 2,
        prefill_side_channel_port=port + 3,
        decode_side_channel_port=port + 4,
        **{**given, **engine},
    )


def carry_out(trial: Coroutine[Any, Any, Found], out: Path | None = None) -> Found:
    """What the trial found, written to `out` too. SystemExit with one line when it could not be carried out."""
    try:
        found = asyncio.run(trial)
    except NeuronPDError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    if out is not None:
        out.write_text(json.dumps(found, indent=2) + "\n")
    return found
