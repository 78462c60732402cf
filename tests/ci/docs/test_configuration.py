import json
import re

import pytest

from ci.docs import configuration
from neuron_pd.core.settings import KEYS, Settings
from neuron_pd.launcher.request import Request
from neuron_pd.launcher.transfer_config import transfer_config
from neuron_pd.profiles import Profiles


def test_every_setting_is_on_the_page_with_its_default() -> None:
    page = configuration.page()
    for name, key in KEYS.items():
        assert key.text
        (default,) = re.findall(rf"^\| `{name}` \| (.*?) \| ", page, re.MULTILINE)
        shown = json.dumps(key.default).strip('"')
        assert default == ("" if key.default is None else f"`{shown}`")


def test_what_launch_writes_is_documented() -> None:
    """Ours and upstream's keys alike: nothing goes into the configuration that has no line on the page."""
    instance = Profiles().instance("cpu")
    request = Request(role="decode", model="tiny")
    extra = transfer_config(request, instance, instance.settings("decode"), "engine")["kv_connector_extra_config"]
    assert set(extra) <= set(KEYS)


def test_a_setting_that_is_not_documented_cannot_be_read() -> None:
    asked: list[str] = []

    def extra(name: str, default: object) -> object:
        asked.append(name)
        return default

    assert Settings.read(extra) == Settings()
    assert set(asked) <= {*KEYS, "neuron_pd_choose"}


def test_a_variable_without_a_text_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "VARIABLES", {})
    with pytest.raises(configuration.Undocumented, match="NEURON_PD_CONTROL_TOKEN"):
        configuration.page()
