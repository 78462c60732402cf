"""A proxy process whose pools are a file: read at start, and again on SIGHUP."""

import asyncio
import json
import os
import signal
from pathlib import Path

import aiohttp
import yaml

from tests.fakes.engine import FakeEngine
from tests.proxy.conftest import CHAT, chat
from tests.proxy.test_cli import free_port, start


async def test_the_file_is_read_again_on_sighup(tmp_path: Path) -> None:
    file, log, port = tmp_path / "pools.yaml", tmp_path / "access.jsonl", free_port()
    async with (
        FakeEngine("prefill", "secret") as p,
        FakeEngine("decode", "secret") as d,
        FakeEngine("decode", "secret") as other,
    ):

        def write(engine: FakeEngine) -> None:
            file.write_text(yaml.safe_dump({"prefill": [p.url], "decode": [engine.url]}))
            os.utime(file, (1_700_000_000, 1_700_000_000))  # only the signal can tell

        write(d)
        process = await start("--pools", str(file), "--port", str(port), "--access-log", str(log))
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 60)
            assert line.endswith(b": 1 prefill, 1 decode\n")
            async with aiohttp.ClientSession() as session:
                write(other)
                process.send_signal(signal.SIGHUP)
                async with asyncio.timeout(20):
                    while not other.generated:
                        async with session.post(
                            f"http://127.0.0.1:{port}{CHAT}", json=chat(f"{os.urandom(4)}")
                        ) as answer:
                            assert answer.status in (200, 503)  # 503 while the new one has not been looked at
                async with session.get(f"http://127.0.0.1:{port}/ready") as ready:
                    engines = (await ready.json())["engines"]
                    assert [(one["url"], one["leaving"]) for one in engines] == [
                        (p.url, False),
                        (d.url, True),
                        (other.url, False),
                    ]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 20) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert {json.loads(line)["path"] for line in log.read_text().splitlines()} == {CHAT, "/ready"}
