import re
from pathlib import Path

from neuron_pd.profiles import Profiles

PAGE = Path(__file__).parents[2] / "docs" / "profiles.md"


def test_the_page_names_every_profile_that_ships() -> None:
    before = PAGE.read_text().split("## One of your own")[0]
    named = set(re.findall(r"`([^`]+)`", before))
    assert set(Profiles().instances()) | set(Profiles().models()) <= named


def test_the_pages_own_profiles_work(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.yaml").write_text(block)
    profiles = Profiles((tmp_path,))
    instance, model = profiles.instance("mine"), profiles.model("owner/My-13B-Instruct")
    assert model is not None
    assert model.settings(instance, "prefill").over(instance.settings("prefill")).max_model_len == 65536
