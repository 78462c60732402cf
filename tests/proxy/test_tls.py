"""TLS on both sides."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme

from neuron_pd.errors import UsageError
from neuron_pd.proxy.app import Proxy
from neuron_pd.proxy.engines import Target
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.settings import Listen, Pools, Settings, Watch
from neuron_pd.proxy.tls import Tls
from tests.fakes.engine import FakeEngine
from tests.proxy.conftest import CHAT, chat, until


class Certificates:
    """An authority, and a certificate that it gave to 127.0.0.1, as files."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.ca, self.cert, self.key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
        self.authority.cert_pem.write_to_path(self.ca)
        self.issue()

    def issue(self) -> None:
        issued = self.authority.issue_cert("127.0.0.1")
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))

    def for_clients(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)

    def for_server(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.cert, self.key)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def in_front_of(tls: Tls, prefill: FakeEngine, decode: FakeEngine, encrypted: bool) -> AsyncIterator[Proxy]:
    pools = [(Target(Origin("127.0.0.1", engine.port, "", encrypted), "127.0.0.1"),) for engine in (prefill, decode)]
    settings = Settings(Pools(*pools), listen=Listen(port=0, drain=0.0), watch=Watch(interval=60.0), tls=tls)
    async with Proxy(settings) as proxy:
        yield proxy


async def test_clients_and_engines_over_tls(certificates: Certificates) -> None:
    tls = Tls(certificates.cert, certificates.key, certificates.ca)
    server, client = certificates.for_server(), certificates.for_clients()
    async with (
        FakeEngine("prefill", tls=server) as prefill,
        FakeEngine("decode", tls=server) as decode,
        in_front_of(tls, prefill, decode, True) as proxy,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client)) as session,
    ):
        url = f"https://127.0.0.1:{proxy.port}"
        for stream in (False, True):
            async with session.post(url + CHAT, json=chat("hello " * 40_000, stream=stream)) as answer:
                assert answer.status == 200
                assert b"reply" in await answer.read()
        async with session.get(url + "/ready") as answer:
            assert (await answer.json())["engines"][0]["url"] == f"https://127.0.0.1:{prefill.port}"
        decode.faults.stall_after = 1
        async with session.post(url + CHAT, json=chat("hello", stream=True)) as answer:
            await answer.content.readany()
        await until(lambda: decode.cancelled == 1)


async def test_engines_that_nobody_vouches_for_are_not_used(certificates: Certificates) -> None:
    server = certificates.for_server()
    async with (
        FakeEngine("prefill", tls=server) as prefill,
        FakeEngine("decode", tls=server) as decode,
        in_front_of(Tls(), prefill, decode, True) as proxy,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"http://127.0.0.1:{proxy.port}/ready") as answer:
            assert answer.status == 503
            assert "certificate" in (await answer.json())["engines"][0]["problems"][0]["what"]
        assert not prefill.requests


async def test_a_renewed_certificate_is_taken_over(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    tls = Tls(certificates.cert, certificates.key)
    async with (
        FakeEngine("prefill") as prefill,
        FakeEngine("decode") as decode,
        in_front_of(tls, prefill, decode, False) as proxy,
    ):

        async def served() -> bytes:
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port, ssl=certificates.for_clients())
            shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return shown

        first = await served()
        certificates.cert.write_text("nonsense")
        proxy.reload()
        assert await served() == first
        certificates.issue()
        proxy.reload()
        assert await served() != first


async def test_plain_http_to_a_tls_port_does_no_harm(certificates: Certificates) -> None:
    async with (
        FakeEngine("prefill") as prefill,
        FakeEngine("decode") as decode,
        in_front_of(Tls(certificates.cert, certificates.key), prefill, decode, False) as proxy,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        assert not answer.startswith(b"HTTP/")
        writer.close()
        await until(lambda: not proxy.server.connections)


def test_files_that_cannot_be_used(certificates: Certificates, tmp_path: Path) -> None:
    nowhere, nonsense = tmp_path / "nowhere.pem", tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    with pytest.raises(UsageError, match="go together"):
        Tls(cert=certificates.cert).for_clients()
    with pytest.raises(UsageError, match="No such file"):
        Tls(nowhere, certificates.key).for_clients()
    with pytest.raises(UsageError, match="cannot be used"):
        Tls(certificates.ca, certificates.key).for_clients()
    for bad in (nowhere, nonsense):
        with pytest.raises(UsageError, match="holds no certificates"):
            Tls(engine_ca=bad).for_engines()
