"""The APIs that generate text through P and D, one module each.

Each says how a request is told to generate one token, which requests one engine must serve alone, how its transcript
becomes a chain of hashes, and how its answers, whole and streamed, are read. vLLM 0.29 to 0.32 accepts
`kv_transfer_params` on all of them, so both legs of a turn go to the same endpoint and render the same prompt.
"""

from neuron_pd.proxy.apis import chat, completions, messages, responses
from neuron_pd.proxy.apis.base import Alone, Api, Reply

GENERATE = {module.API.path: module.API for module in (chat, completions, messages, responses)}

__all__ = ["GENERATE", "Alone", "Api", "Reply"]
