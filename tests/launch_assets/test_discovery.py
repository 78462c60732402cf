"""The proxy of a cluster's manifest finds that cluster's engines, and has the right to."""

from pathlib import Path
from typing import Any

import yaml

from neuron_pd.cli.proxy import command
from neuron_pd.cli.proxy.engines import pools
from neuron_pd.proxy.pools.kubernetes import Access, Kubernetes
from tests.fakes.kubernetes import FakeKubernetes
from tests.launch_assets.tools import neuron_pd


def manifest(name: str) -> list[dict[str, Any]]:
    argv = ("--name", name, "--image", "i:1", "--instance", "trn2.48xlarge", "--model", "Qwen/Qwen3-32B")
    return list(yaml.safe_load_all(neuron_pd("cluster", *argv)))


def of(documents: list[dict[str, Any]], kind: str, suffix: str) -> dict[str, Any]:
    (found,) = [one for one in documents if one["kind"] == kind and one["metadata"]["name"].endswith(f"-{suffix}")]
    return found


def proxy_argv(documents: list[dict[str, Any]]) -> list[str]:
    """As Kubernetes starts it: variables that the container has are put in."""
    (container,) = of(documents, "Deployment", "proxy")["spec"]["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    for variable in container["env"]:
        words = [word.replace(f"$({variable['name']})", variable["value"]) for word in words]
    assert words[:4] == ["python3", "-m", "neuron_pd", "proxy"]
    return words[4:]


async def test_it_finds_its_own_engines_and_no_others(tmp_path: Path) -> None:
    ours, others = manifest("qwen"), manifest("other")
    (tmp_path / "token").write_text("service-account")
    (tmp_path / "namespace").write_text("serving")
    async with FakeKubernetes() as api:
        for number, documents in enumerate((ours, others)):
            for role in ("prefill", "decode"):
                template = of(documents, "Deployment", role)["spec"]["template"]
                await api.apply(f"{number}-{role}", role, ip=f"10.0.0.{number}", labels=template["metadata"]["labels"],
                                ports=template["spec"]["containers"][0]["ports"])  # fmt: skip
        context = command.make_context("proxy", proxy_argv(ours))
        (asked,) = pools.of(context.params).sources
        assert isinstance(asked, Kubernetes)
        watch = Kubernetes(asked.namespace, asked.selector, Access(api.url, tmp_path)).watch()
        found = sorted(f"{member.role} {member.target.origin.url}" for member in await anext(watch))
    assert found == ["decode http://10.0.0.0:8200", "prefill http://10.0.0.0:8100"]


def test_it_may_see_pods_and_reaches_its_store() -> None:
    documents = manifest("qwen")
    account = of(documents, "Deployment", "proxy")["spec"]["template"]["spec"]["serviceAccountName"]
    binding = of(documents, "RoleBinding", "proxy")
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    assert binding["roleRef"]["name"] == of(documents, "Role", "proxy")["metadata"]["name"]
    (rule,) = of(documents, "Role", "proxy")["rules"]
    assert (rule["resources"], rule["verbs"]) == (["pods"], ["list", "watch"])
    argv, service = proxy_argv(documents), of(documents, "Service", "redis")
    (port,) = service["spec"]["ports"]
    assert argv[argv.index("--store") + 1] == f"redis://{service['metadata']['name']}:{port['port']}/0"
    redis = of(documents, "Deployment", "redis")["spec"]["template"]
    assert service["spec"]["selector"].items() <= redis["metadata"]["labels"].items()
    policy = of(documents, "NetworkPolicy", "redis")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= redis["metadata"]["labels"].items()
    ((allowed,),) = [rule["from"] for rule in policy["ingress"]]
    labels = of(documents, "Deployment", "proxy")["spec"]["template"]["metadata"]["labels"]
    assert allowed["podSelector"]["matchLabels"].items() <= labels.items()


def test_no_services_name_becomes_an_options_variable() -> None:
    """A Service neuron-pd-proxy would set NEURON_PD_PROXY_PORT=tcp://10.1.2.3:8000 in each pod."""
    pods = [one["spec"]["template"]["spec"] for one in manifest("neuron-pd") if one["kind"] == "Deployment"]
    assert len(pods) == 4
    assert all(pod["enableServiceLinks"] is False for pod in pods)


def test_it_drains_for_less_time_than_its_pod_has() -> None:
    documents = manifest("qwen")
    pod = of(documents, "Deployment", "proxy")["spec"]["template"]["spec"]
    argv = proxy_argv(documents)
    wait = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert wait + int(argv[argv.index("--drain-seconds") + 1]) < pod["terminationGracePeriodSeconds"]
