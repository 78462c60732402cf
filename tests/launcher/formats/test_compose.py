import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from neuron_pd.errors import UsageError
from neuron_pd.launcher.cluster import Cluster, in_containers, plan_pair
from neuron_pd.launcher.formats import container
from neuron_pd.launcher.formats.compose import compose
from neuron_pd.launcher.request import Request
from tests.launcher.formats.recording import hostile

jsonschema = pytest.importorskip("jsonschema")
MANY = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def cluster(**given_: Any) -> Cluster:
    said: dict[str, Any] = {"model": f"{container.MODELS}/tiny", "card": "tiny", **given_}
    made = {"image": "neuron-pd:cpu", "token_file": Path(container.TOKEN_PATH), "python": "python3"}
    request = Request(role="prefill", **made, **said)
    prefill, decode = plan_pair(in_containers(request), cores=2)
    return Cluster(name="it", prefill=prefill, decode=decode, proxy_image="neuron-pd:cpu")


def parsed(made: Cluster) -> dict[str, Any]:
    """The compose file, valid by the specification's schema, which check-jsonschema ships."""
    body = yaml.safe_load(compose(made))
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(body, json.loads(schema.read_text()))
    assert isinstance(body, dict)
    return body


def interpolated(text: str) -> str:
    """As Compose reads it: $$ is a dollar, and no variable is meant."""
    assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", text), text
    return text.replace("$$", "$")


@MANY
@given(name=hostile, model=hostile)
def test_compose_gives_what_was_meant(name: str, model: str) -> None:
    made = cluster(model=f"owner/{model}", card="", served_name=f"n{name}", connector="upstream")
    services = parsed(made)["services"]
    for spec in made.engines:
        service = services[spec.role]
        words = [interpolated(word) for word in (*service["entrypoint"], *service["command"])]
        assert words == spec.argv()
        variables = {key: interpolated(text) for key, text in service["environment"].items()}
        assert variables == container.environment(spec)


def test_the_proxy_waits_for_engines_that_it_can_reach() -> None:
    made = cluster()
    body = parsed(made)
    proxy = body["services"]["proxy"]
    assert set(proxy["depends_on"]) == {"prefill", "decode"}
    for spec in made.engines:
        service = body["services"][spec.role]
        address = service["networks"]["default"]["ipv4_address"]
        assert spec.url == f"http://{address}:{spec.port}"
        assert proxy["command"][proxy["command"].index(f"--{spec.role}") + 1] == spec.url
        assert service["environment"]["VLLM_NIXL_SIDE_CHANNEL_HOST"] == address
        assert service["healthcheck"]["test"][-1] == f"{spec.url}/health"
    cores = [body["services"][spec.role]["environment"]["VLLM_CPU_OMP_THREADS_BIND"] for spec in made.engines]
    assert cores == ["0-1", "2-3"]


def test_the_token_is_a_secret_that_must_be_named() -> None:
    body = parsed(cluster())
    assert body["secrets"]["control-token"]["file"].startswith("${NEURON_PD_CONTROL_TOKEN_FILE:?")
    for service in body["services"].values():
        assert service["secrets"] == [{"source": "control-token", "target": container.TOKEN_PATH}]
        assert service["environment"]["NEURON_PD_CONTROL_TOKEN_FILE"] == container.TOKEN_PATH


def test_a_directory_of_the_machine_is_mounted_and_the_images_own_is_not() -> None:
    assert "volumes" not in parsed(cluster())["services"]["prefill"]
    (volume,) = parsed(cluster(model="/models/${MINE}"))["services"]["decode"]["volumes"]
    assert (volume["source"], volume["target"], volume["read_only"]) == ("/models/$${MINE}", "/models/$${MINE}", True)


def test_what_compose_is_not_for() -> None:
    with pytest.raises(UsageError, match="use --format k8s"):
        compose(replace(cluster(), decode_engines=2))
    with pytest.raises(UsageError, match=r"for p5en\.48xlarge use --format k8s"):
        cluster(model="Qwen/Qwen3-32B", instance="p5en.48xlarge")
