"""Two turns of one conversation through the proxy: does P read the second one's history back from D?

Prompts are token ids, so that nothing depends on a tokenizer: random ones, which no cache has seen. The reply is long
enough for D to hold more than P's own prefix cache does, by the recompute threshold at least; so a read-back is due
even where P keeps a cache.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from neuron_pd.core.decision import DEFAULT_RECOMPUTE_THRESHOLD, Path
from neuron_pd.doctor.ask import Answer, CannotReach, ask
from neuron_pd.doctor.cluster.place import Cluster
from neuron_pd.doctor.cluster.reasons import explain
from neuron_pd.doctor.findings import Finding, failed, not_applicable, ok, probe, warning

COMPLETIONS: Final = "/v1/completions"
TURN: Final = "x-neuron-pd-turn"
LAST: Final = {"X-Neuron-PD-Session": "end"}  # nothing is kept of the conversation after its second turn
# Ordinary tokens of any vocabulary: special ones are among the first or the last.
TOKENS: Final = range(300, 1000)
NEW_TOKENS: Final = 16
LONGEST_REPLY: Final = 2048  # tokens; a threshold above it is reported by P as what it is
UNKNOWN_BLOCK: Final = 128  # tokens; the greatest that vLLM's platforms use by default


class SelfTestFailed(Exception):
    """The two turns did not come about. `args`: what was seen, and the line that fixes it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the two turns, in tokens."""

    prompt: int
    reply: int

    @classmethod
    def of(cls, cluster: Cluster) -> "Sizes":
        """D's blocks of prompt and reply are more than P's of the prompt by the threshold, however both are cut."""
        block = max((info.block_size for _, info in cluster.known), default=UNKNOWN_BLOCK)
        thresholds = [info.kv_recompute_threshold for _, info in cluster.known]
        threshold = max([size for size in thresholds if isinstance(size, int)] or [DEFAULT_RECOMPUTE_THRESHOLD])
        return cls(prompt=2 * block, reply=min(block + threshold, LONGEST_REPLY))


@probe("Cluster", "reuse", "the line of its reason; see also the engines above")
def reuse(cluster: Cluster) -> Finding:
    """two turns of a conversation through the proxy: the second must be read back; if not, its reason is explained"""
    if cluster.proxy is None or not cluster.self_test:
        return not_applicable("no proxy was named" if cluster.proxy is None else "not asked for")
    if cluster.proxy_down:
        return not_applicable("the proxy does not answer")
    try:
        return _judged(_two_turns(cluster))
    except SelfTestFailed as error:
        return failed(*error.args)


PROBES: Final = (reuse,)


def _two_turns(cluster: Cluster) -> Mapping[str, str]:
    """What the proxy says of the second turn."""
    sizes, model, name = Sizes.of(cluster), _model(cluster), f"neuron-pd-doctor-{uuid4().hex}"
    prompt = random.choices(TOKENS, k=sizes.prompt)
    fields = {"model": model, "conversation_id": name, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    first = _complete(cluster, {**fields, "prompt": prompt, "max_tokens": sizes.reply})
    reply = _reply(first)
    longer = [*prompt, *reply, *random.choices(TOKENS, k=NEW_TOKENS)]
    second = _complete(cluster, {**fields, "prompt": longer, "max_tokens": 1}, LAST)
    said = second.headers.get(TURN)
    if said is None:
        what = "the proxy does not say how the turn was served: P gave no report"
        raise SelfTestFailed(what, "see connector: both engines need neuron-pd's")
    return dict(part.strip().partition("=")[::2] for part in said.split(";"))


def _judged(turn: Mapping[str, str]) -> Finding:
    reused, prompt = turn.get("reused", "0"), turn.get("prompt", "?")
    if reused != "0" or turn.get("path") == Path.DIRECT:
        return ok(f"works: {reused} of {prompt} tokens of a second turn came from D (path {turn.get('path')})")
    reason = turn.get("offer") or turn.get("reason", "")
    what, fix = explain(reason)
    seen = f"a second turn was computed again, {prompt} tokens: {reason}, {what}"
    return (warning if reason in ("cost", "local", "below_threshold") else failed)(seen, fix)


def _model(cluster: Cluster) -> str:
    answer = _asked(cluster, "/v1/models", None, cluster.seconds)
    said = answer.json()
    try:
        return str(said["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise SelfTestFailed(f"/v1/models answers {answer.status} and names no model", "see the proxy's log") from None


def _complete(cluster: Cluster, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> Answer:
    answer = _asked(cluster, COMPLETIONS, body, cluster.self_test_seconds, headers)
    if answer.status == 200:
        return answer
    said = answer.json()
    error = said.get("error") if isinstance(said, dict) else None
    message = " ".join(str(error.get("message", "") if isinstance(error, dict) else error or "").split())[:200]
    denied = answer.status in (401, 403)
    fix = "name the variable with a client's key: --api-key-env" if denied else "see the proxy's and the engines' logs"
    raise SelfTestFailed(f"a turn through the proxy fails with {answer.status}: {message}", fix)


def _asked(cluster: Cluster, path: str, body: Any, seconds: float, headers: Mapping[str, str] | None = None) -> Answer:
    assert cluster.proxy is not None
    try:
        return ask(
            cluster.proxy, path, body=body, headers={**cluster.keys.for_proxy(), **(headers or {})}, seconds=seconds
        )
    except CannotReach as error:
        raise SelfTestFailed(f"the proxy gives no answer to {path}: {error}", "see the proxy's log") from error


def _reply(answer: Answer) -> list[int]:
    said = answer.json()
    try:
        return [int(token) for token in said["choices"][0]["token_ids"]]
    except (KeyError, IndexError, TypeError, ValueError):
        what = "the reply has no token_ids, with which the second turn would go on"
        raise SelfTestFailed(what, "send two turns of a conversation by hand, and read X-Neuron-PD-Turn") from None
