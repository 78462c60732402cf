"""The explicit end of a conversation: `DELETE /neuron_pd/v1/conversations/{id}`."""

from urllib.parse import parse_qs, unquote_to_bytes

import orjson

from neuron_pd.core.control import PREFIX
from neuron_pd.proxy.conversations import MAX_ID_BYTES, Scope
from neuron_pd.proxy.errors import JSON, Refusal
from neuron_pd.proxy.http import Request, Responder, UpstreamError
from neuron_pd.proxy.router import Router
from neuron_pd.proxy.tenants import Tenant
from neuron_pd.proxy.turn import end_of_session

SESSIONS = f"{PREFIX}conversations/"


async def end_session(router: Router, request: Request, responder: Responder, tenant: Tenant) -> int:
    """Forget the conversation of this tenant that its id names, and release it at D; 200 also where there was none.

    `?model=` and `?cache_salt=` say which, where the conversation's requests had them; without a model, all models that
    the decode engines serve are meant.
    """
    if request.method != b"DELETE":
        raise Refusal(405, "a conversation is ended with DELETE", "method_not_allowed", ((b"allow", b"DELETE"),))
    path, _, query = request.target.partition(b"?")
    name = unquote_to_bytes(path[len(SESSIONS) :])[:MAX_ID_BYTES]
    options = parse_qs(query.decode("latin-1"))
    salt = options.get("cache_salt", [None])[-1]
    models = options.get("model") or ["", *await _served(router)]
    keys = [Scope(tenant.name, model, salt, router.secret).key(b"id", name) for model in dict.fromkeys(models)]
    ended = await end_of_session(router.store, router.engines, router.leases, keys)
    responder.send(200, [JSON], orjson.dumps({"id": name.decode("utf-8", "replace"), "deleted": ended > 0}))
    return 200


async def _served(router: Router) -> list[str]:
    """The names that a decode engine serves, adapters among them; none while no engine answers."""
    try:
        engine = router.engines.for_decode()
        models = await router.legs.models(engine)
    except (Refusal, UpstreamError):
        return []
    return models
