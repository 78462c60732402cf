import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from neuron_pd.errors import EngineStartError, UsageError
from neuron_pd.launcher import processes
from neuron_pd.launcher.health import status
from neuron_pd.launcher.supervisor import Event, Supervisor, describe_exit
from neuron_pd.launcher.topology import Child
from tests.launcher.plans import MARK, Plan, left_of, until_none_left, until_there

DRIVER = """
import asyncio, sys
from pathlib import Path
from neuron_pd.launcher.supervisor import Supervisor
from tests.launcher.plans import Plan

async def main():
    plan = Plan(Path(sys.argv[1]), Path(sys.argv[2]))
    plan.add("prefill", stubborn="1", family="1")
    plan.add("decode", family="1")
    async with Supervisor(plan, stop_grace=0.5) as running:
        print("up", flush=True)
        await running.wait()

asyncio.run(main())
"""


async def test_all_are_up_inside_the_block_and_none_is_left_after_it(plan: Plan, tmp_path: Path) -> None:
    events: list[Event] = []
    prefill, decode = plan.add("prefill", delay="0.3"), plan.add("decode")
    plan.then()
    proxy = plan.add("proxy", kind="proxy")

    async with Supervisor(plan, events.append) as running:
        assert [await status(child.health_url) for child in (prefill, decode, proxy)] == [200, 200, 200]
        assert running.proxy_url == f"http://127.0.0.1:{proxy.port}"
        assert running.logs["decode"].read_text() == "loading the weights\nserving\n"
        assert {started.name for started in processes.running()} == {"prefill", "decode", "proxy"}
        phases = [(event.name, event.phase) for event in events]
        # Side by side, and the proxy only when both are up.
        assert phases.index(("decode", "starting")) < phases.index(("prefill", "ready"))
        assert phases.index(("prefill", "ready")) < phases.index(("proxy", "starting"))

    assert not left_of(tmp_path)
    assert not list(processes.running())
    assert events[-1].phase == "stopped"


async def test_the_death_of_one_ends_all_and_names_its_log(plan: Plan, tmp_path: Path) -> None:
    plan.add("prefill")
    decode = plan.add("decode", die="0.5")

    with pytest.raises(EngineStartError) as caught:
        async with Supervisor(plan) as running:
            await running.wait()

    assert str(caught.value) == (
        f"decode ended (exit status 3): ValueError: the weights do not fit; its log is {decode.log}"
    )
    assert not left_of(tmp_path)


async def test_death_during_the_start_ends_all(plan: Plan, tmp_path: Path) -> None:
    plan.add("prefill", delay="60")
    plan.add("decode", delay="60", die="0.2")
    with pytest.raises(EngineStartError, match="decode ended"):
        async with Supervisor(plan):
            pytest.fail("never up")
    assert not left_of(tmp_path)


async def test_death_of_an_engine_while_the_proxy_starts(plan: Plan, tmp_path: Path) -> None:
    plan.add("prefill", die="1")
    plan.then()
    plan.add("proxy", delay="60")
    with pytest.raises(EngineStartError, match="prefill ended"):
        async with Supervisor(plan):
            pytest.fail("never up")
    assert not left_of(tmp_path)


async def test_a_start_that_takes_too_long_names_the_late_one(plan: Plan) -> None:
    decode = plan.add("decode", delay="600")
    with pytest.raises(EngineStartError) as caught:
        async with Supervisor(plan, start_timeout=3):
            pytest.fail("never up")
    assert str(caught.value) == (
        f"decode was not up within 3 s: loading the weights; its log is {decode.log}; allow more with --start-timeout"
    )


async def test_stubborn_children_and_orphans_are_killed(plan: Plan, tmp_path: Path) -> None:
    plan.add("prefill", stubborn="1", family="1")
    async with Supervisor(plan, stop_grace=0.2):
        assert len(left_of(tmp_path)) == 4  # its tether, itself, its child and the orphan
    assert not left_of(tmp_path)


@pytest.mark.parametrize("behaviour", [{}, {"die": "1"}])
async def test_descendants_may_tidy_up_before_they_are_killed(
    behaviour: dict[str, str], plan: Plan, tmp_path: Path
) -> None:
    plan.add("prefill", tidy=str(tmp_path / "shared-memory"), **behaviour)

    async def run() -> None:
        async with Supervisor(plan) as running:
            await asyncio.to_thread(until_there, tmp_path / "shared-memory")
            if behaviour:
                await running.wait()

    with pytest.raises(EngineStartError) if behaviour else contextlib.nullcontext():
        await run()
    assert not (tmp_path / "shared-memory").exists()


async def test_a_child_that_dies_takes_its_descendants_along(plan: Plan, tmp_path: Path) -> None:
    plan.add("prefill", family="1", die="1")
    with pytest.raises(EngineStartError):
        async with Supervisor(plan, stop_grace=0.2) as running:
            await running.wait()
    assert not left_of(tmp_path)


async def test_cancelled_during_the_start(plan: Plan, tmp_path: Path) -> None:
    plan.add("prefill", delay="60", family="1")
    entered = asyncio.Event()

    async def start() -> None:
        async with Supervisor(plan, lambda event: entered.set(), stop_grace=0.2):
            pytest.fail("never up")

    task = asyncio.create_task(start())
    await entered.wait()
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # a second Ctrl-C does not cut the stopping short
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not left_of(tmp_path)


async def test_cancelled_at_once(plan: Plan, tmp_path: Path) -> None:
    plan.add("prefill")

    async def start() -> None:
        async with Supervisor(plan):
            pytest.fail("never up")

    task = asyncio.create_task(start())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(until_none_left, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_nothing_outlives_a_supervisor_that_is_killed(number: int, tmp_path: Path) -> None:
    """SIGKILL too, and SIGTERM without any handler: the tethers see their end close."""
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DRIVER, str(tmp_path / "run"), str(tmp_path),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env={**os.environ, MARK: str(tmp_path)},
    )  # fmt: skip
    assert driver.stdout is not None
    assert await driver.stdout.readline() == b"up\n"
    assert len(left_of(tmp_path)) == 9
    driver.send_signal(number)
    await driver.wait()
    await asyncio.to_thread(until_none_left, tmp_path)


async def test_a_killed_tether_takes_its_command_along(plan: Plan, tmp_path: Path) -> None:
    plan.add("prefill")

    async def kill_the_tether() -> None:
        async with Supervisor(plan) as running:
            (started,) = processes.running()
            os.kill(started.pid, signal.SIGKILL)
            await running.wait()

    with pytest.raises(EngineStartError, match=r"prefill ended \(killed by SIGKILL\)"):
        await kill_the_tether()
    await asyncio.to_thread(until_none_left, tmp_path)


async def test_what_cleanup_stops_is_missed_by_nobody(plan: Plan) -> None:
    plan.add("prefill")
    proxy = plan.add("proxy", kind="proxy")
    async with Supervisor(plan) as running:
        waiting = asyncio.create_task(running.wait())
        for started in list(processes.running()):
            if started.kind == "proxy":
                assert await asyncio.to_thread(processes.stop, started, 10)
        assert await status(proxy.health_url) is None
        assert not waiting.done()
        for started in list(processes.running()):
            await asyncio.to_thread(processes.stop, started, 10)
        await waiting


async def test_a_command_that_cannot_run(plan: Plan, tmp_path: Path) -> None:
    child = Child("prefill", "server", ["/nowhere/python"], 1, "http://127.0.0.1:1/", tmp_path / "run" / "prefill.log")
    plan.built[-1].append(child)
    with pytest.raises(EngineStartError, match=r"exit status 127\): cannot run /nowhere/python: No such file"):
        async with Supervisor(plan):
            pytest.fail("never up")


async def test_a_run_directory_that_cannot_be_made(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    plan.run_dir = tmp_path / "file" / "run"
    with pytest.raises(UsageError, match="--run-dir"):
        async with Supervisor(plan):
            pytest.fail("never up")


def test_exit_in_words() -> None:
    assert describe_exit(1) == "exit status 1"
    assert describe_exit(128 + signal.SIGSEGV) == describe_exit(-signal.SIGSEGV) == "killed by SIGSEGV"
