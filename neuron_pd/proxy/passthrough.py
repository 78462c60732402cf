"""Everything that is not a P/D turn goes to a decode engine as it came: models, tokenize, embeddings, other APIs.

Only what clients of an inference API use is passed on. Engines have more behind the same port (their control path, LoRA
loading, cache resets, profiling), and those are for operators, at the engine.
"""

from neuron_pd.proxy.bodies import FORBIDDEN, XARGS, dump, load, refuse_transfer_params
from neuron_pd.proxy.engines import Engine, Engines
from neuron_pd.proxy.errors import JSON, Refusal
from neuron_pd.proxy.http import ConnectFailed, Request, Responder, Response, Timeouts, UpstreamError
from neuron_pd.proxy.legs import Legs, unavailable
from neuron_pd.proxy.relay import relay
from neuron_pd.proxy.tenants import Tenant

PREFIXES = ("/v1/", "/v2/")
PATHS = frozenset(("/tokenize", "/detokenize", "/version", "/score", "/rerank", "/pooling", "/classify", "/ping"))
OPERATORS_ONLY = frozenset(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"))
MODELS = "/v1/models"
METHODS = frozenset((b"GET", b"HEAD", b"POST", b"DELETE", b"OPTIONS"))


def passes(path: str) -> bool:
    """Whether a path is passed on. An escaped path is not: an engine would decode it into another one."""
    if "%" in path or path in OPERATORS_ONLY:
        return False
    return path.startswith(PREFIXES) or path in PATHS


async def pass_through(
    engines: Engines,
    legs: Legs,
    timeouts: Timeouts,
    request: Request,
    responder: Responder,
    tenant: Tenant,
    at: str | None,
) -> int:
    """Serve a request by one D, the one at the URL `at` if it can be; its status.

    Refusal for what is not passed on, or while no D answers.
    """
    if not passes(request.path):
        raise Refusal(404, f"{request.path[:200]} is not served here", "not_found")
    if request.method not in METHODS:
        raise Refusal(405, "this method is not served here", "method_not_allowed")
    _refuse_transfer(request.body)
    _require_model(request, tenant)
    decode, response = await _reach(engines, legs, timeouts, request, at)
    try:
        if request.path == MODELS and tenant.models is not None and response.status == 200:
            await _list_models(response, responder, tenant)
        else:
            await relay(response, responder, ())
    except UpstreamError as error:
        legs.failed(decode, "passthrough", error)
        raise unavailable("decode", error) from error
    finally:
        decode.end(1)
        response.close()
    return response.status


async def _reach(
    engines: Engines, legs: Legs, timeouts: Timeouts, request: Request, at: str | None
) -> tuple[Engine, Response]:
    headers = legs.headers(request)
    refused: list[Engine] = []
    while True:
        decode = engines.for_decode(at, refused)
        decode.begin(1)
        try:
            response = await legs.client.request(
                decode.origin, request.method, request.target, headers, request.body, timeouts
            )
        except BaseException as error:
            decode.end(1)
            if not isinstance(error, UpstreamError):
                raise
            legs.failed(decode, "passthrough", error)
            if not isinstance(error, ConnectFailed):
                raise unavailable("decode", error) from error
            refused.append(decode)
        else:
            decode.breaker.succeeded()
            return decode, response


def _require_model(request: Request, tenant: Tenant) -> None:
    """A key for some models only must name one of them: in the path, or in a JSON body. Refusal 404 otherwise."""
    if tenant.models is None or request.path in (MODELS, "/version", "/ping"):
        return
    if request.path.startswith(f"{MODELS}/"):
        tenant.require(request.path.removeprefix(f"{MODELS}/"))
    elif not request.path.startswith("/v1/responses/"):
        parsed, _ = load(request.body)
        tenant.require(str(parsed.get("model") or "") if isinstance(parsed, dict) else "")


async def _list_models(response: Response, responder: Responder, tenant: Tenant) -> None:
    """The list of models without those that this key may not use."""
    listed, _ = load(await response.read())
    listed["data"] = [model for model in listed["data"] if tenant.may_use(model["id"])]
    responder.send(200, [JSON], dump(listed))


def _refuse_transfer(body: bytes) -> None:
    """Look into a body only where it may name transfer parameters, plainly or with escapes."""
    if b"\\u" not in body and not any(name.encode() in body for name in FORBIDDEN):
        return
    try:
        parsed, _ = load(body)
    except Refusal as error:
        # A form, whose fields engines parse; or nothing, and the engine will say so.
        if any(name.encode() in body for name in (*FORBIDDEN, XARGS)):
            raise Refusal(400, "transfer parameters cannot be given by a client", "forbidden_field") from error
        return
    if isinstance(parsed, dict):
        refuse_transfer_params(parsed)
