"""The pools file: what it may say, and what is said of one that cannot be used."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_pd.errors import UsageError
from neuron_pd.proxy.engines import Role, Target
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.pools.file import parse_pools, read_pools
from neuron_pd.proxy.pools.kubernetes import Kubernetes
from neuron_pd.proxy.pools.names import Names
from neuron_pd.proxy.pools.source import Member, Plan

DOCUMENTED = """\
prefill:
  - http://10.0.0.1:8100
  - {url: "http://10.0.0.2:8100", kv_host: 10.1.0.2}
decode:
  - {url: "http://10.0.0.3:8200", drain: true}
  - dns+http://decode.serving.svc:8200
kubernetes:
  namespace: serving
  selector: app=qwen
"""


def test_all_that_is_documented(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(DOCUMENTED)
    assert read_pools(file) == Plan(
        (
            Member(Role.PREFILL, Target(Origin("10.0.0.1", 8100), "10.0.0.1")),
            Member(Role.PREFILL, Target(Origin("10.0.0.2", 8100), "10.1.0.2")),
            Member(Role.DECODE, Target(Origin("10.0.0.3", 8200), "10.0.0.3"), draining=True),
        ),
        (Names(Role.DECODE, Origin("decode.serving.svc", 8200)), Kubernetes("serving", "app=qwen")),
    )


def test_the_example_in_the_documentation_is_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "proxy.md").read_text()
    (example,) = [block for block in page.split("\n\n") if block.lstrip().startswith("prefill:")]
    plan = parse_pools(yaml.safe_load(example))
    assert plan == parse_pools(yaml.safe_load(DOCUMENTED))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "the file must be a mapping with decode, kubernetes, prefill"),
        ({"prefil": []}, "the file has no 'prefil'"),
        ({"prefill": "http://a:1"}, "prefill must be a list"),
        ({"prefill": [7]}, "prefill[0] must be a mapping"),
        ({"decode": [{"kv_host": "a"}]}, "decode[0] needs a url"),
        ({"decode": [{"url": "http://a:1", "weight": 2}]}, "decode[0] has no 'weight'"),
        ({"decode": [{"url": "http://a:1", "drain": "yes"}]}, "drain must be true or false"),
        ({"decode": [{"url": "http://a:1", "kv_host": ""}]}, "kv_host must be a host"),
        ({"decode": [{"url": "ftp://a:1"}]}, "http:// and https:// only"),
        ({"decode": [{"url": "dns+http://a:1", "drain": True}]}, "a name that is resolved has a url only"),
        ({"decode": ["dns+https://a:1"]}, "dns+http://NAME:PORT only"),
        ({"prefill": ["http://a:1"], "decode": ["http://a:1"]}, "http://a:1 is given twice"),
        ({"kubernetes": {"namespace": 3}}, "namespace must be text"),
        ({"kubernetes": {"namespace": "a/b"}}, "is not a namespace"),
        ({"kubernetes": {"labels": "a=b"}}, "kubernetes has no 'labels'"),
    ],
)
def test_what_it_may_not_say(content: Any, said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_pools(content)
    assert said in str(refusal.value)


def test_no_file_and_no_yaml(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_pools(tmp_path / "none.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("prefill: [")
    with pytest.raises(UsageError, match=r"bad\.yaml is not YAML"):
        read_pools(bad)
    bad.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UsageError, match=r"bad\.yaml is not YAML"):
        read_pools(bad)
