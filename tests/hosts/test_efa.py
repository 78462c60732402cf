from pathlib import Path

import pytest

from neuron_pd.hosts.efa import efa_devices, kernel_efa_devices, libfabric_version, parse_fi_info
from tests.hosts.machines import INSTANCES, captured, sysfs


@pytest.mark.parametrize("instance", INSTANCES)
def test_libfabric_and_the_kernel_name_the_same_devices(instance: str, tmp_path: Path) -> None:
    found = efa_devices(parse_fi_info(captured(instance, "fi_info.txt")))
    assert found == kernel_efa_devices(sysfs(tmp_path, instance))


def test_an_endpoint() -> None:
    first = parse_fi_info(captured("p5en.48xlarge", "fi_info.txt"))[0]
    assert (first.provider, first.fabric, first.protocol, first.version) == (
        "efa",
        "efa-direct",
        "FI_PROTO_EFA",
        "201.0",
    )
    assert first.domain == f"{first.device}-rdm"


def test_a_fabric_named_by_its_address_and_a_datagram_endpoint() -> None:
    text = "provider: efa\n    fabric: EFA-fe80::8a:ff:fe12:3456\n    domain: rdmap0s6-dgrm\n    version: 122.0\n"
    (endpoint,) = parse_fi_info(text)
    assert (endpoint.device, endpoint.fabric, endpoint.protocol) == ("rdmap0s6", "EFA-fe80::8a:ff:fe12:3456", "")


def test_another_provider_is_not_efa() -> None:
    assert efa_devices(parse_fi_info("provider: tcp\n    fabric: 10.0.0.0/16\n    domain: ens32\n")) == []
    assert parse_fi_info("fi_getinfo: -61 (No data available)\n") == []


def test_the_version() -> None:
    text = "fi_info: 2.6.0amzn1.0\nlibfabric: 2.6.0amzn1.0\nlibfabric api: 2.6\n"
    assert libfabric_version(text) == "2.6.0amzn1.0"
    assert libfabric_version("") is None


def test_an_infiniband_card_of_another_vendor_is_not_efa(tmp_path: Path) -> None:
    for name, vendor in (("mlx5_0", "0x15b3"), ("rdmap0s6", "0x1d0f")):
        device = tmp_path / "sys/class/infiniband" / name / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
    (tmp_path / "sys/class/infiniband/odd").mkdir()
    assert kernel_efa_devices(tmp_path) == ["rdmap0s6"]
