"""EFA devices: as libfabric's `fi_info -p efa -t FI_EP_RDM` lists them, and as the kernel does."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

QUERY: Final = ("fi_info", "-p", "efa", "-t", "FI_EP_RDM")
VERSION_QUERY: Final = ("fi_info", "--version")
ENDPOINT_TYPE: Final = re.compile(r"-(rdm|dgrm)$")
AMAZON_VENDOR: Final = "0x1d0f"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One stanza of fi_info. `domain` is the device's name with its endpoint type, `fabric` efa, efa-direct or EFA-…"""

    provider: str
    fabric: str
    domain: str
    version: str
    protocol: str

    @property
    def device(self) -> str:
        return ENDPOINT_TYPE.sub("", self.domain)


def parse_fi_info(text: str) -> list[Endpoint]:
    """The endpoints. Empty where fi_info found none (`fi_getinfo: -61 (No data available)`)."""
    stanzas: list[dict[str, str]] = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            continue
        if key == "provider":
            stanzas.append({})
        if stanzas:
            stanzas[-1][key.strip()] = value.strip()
    names = ("provider", "fabric", "domain", "version", "protocol")
    return [Endpoint(**{name: stanza.get(name, "") for name in names}) for stanza in stanzas]


def efa_devices(endpoints: list[Endpoint]) -> list[str]:
    """The devices behind efa endpoints, each once, in the order of their names."""
    return sorted({endpoint.device for endpoint in endpoints if endpoint.provider.startswith("efa")})


def libfabric_version(text: str) -> str | None:
    """The library's version in what `fi_info --version` prints; None where it does not say."""
    found = re.search(r"^libfabric:\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else None


def kernel_efa_devices(root: Path = Path("/")) -> list[str]:
    """RDMA devices of Amazon's vendor id in sysfs, in the order of their names."""
    found = []
    for device in (root / "sys/class/infiniband").glob("*"):
        try:
            vendor = (device / "device/vendor").read_text().strip()
        except OSError:
            continue
        if vendor == AMAZON_VENDOR:
            found.append(device.name)
    return sorted(found)
