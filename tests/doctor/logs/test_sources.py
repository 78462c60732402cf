import os
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from neuron_pd.doctor.logs.kinds import Filter
from neuron_pd.doctor.logs.read import follow, read
from neuron_pd.doctor.logs.records import Record
from neuron_pd.doctor.logs.sources import File, Journal, files_at, newest_run
from neuron_pd.errors import UsageError

NOW = datetime(2026, 11, 30, 12, 0)


def line(second: int, text: str) -> str:
    return f"INFO 11-30 10:59:{second:02} [x.py:1] {text}\n"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "prefill.log").write_text(line(1, "p1") + line(3, "p3") + "more of p3\n")
    (tmp_path / "decode.log").write_text("before any time\n" + line(2, "d2"))
    return tmp_path


def test_several_logs_in_order_of_time(logs: Path) -> None:
    sources = files_at([logs])
    assert [source.name for source in sources] == ["decode", "prefill"]
    texts = [record.text for record in read(sources, Filter(), NOW)]
    assert texts == ["before any time", "p1", "d2", "p3\nmore of p3"]
    assert [record.text for record in read(sources, Filter(), NOW, last=1)] == ["p3\nmore of p3"]


def test_what_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no \*.log"):
        files_at([tmp_path])
    with pytest.raises(UsageError, match="there is no log"):
        files_at([tmp_path / "none.log"])
    (tmp_path / "directory.log").mkdir()
    with pytest.raises(UsageError, match=r"has no \*.log"):
        files_at([tmp_path])
    with pytest.raises(UsageError, match=r"cannot read the log .*: Is a directory"):
        read([File(tmp_path / "directory.log")], Filter(), NOW)


def test_the_newest_run(tmp_path: Path) -> None:
    assert newest_run(tmp_path / "runs") is None
    for number, name in enumerate(("old", "new", "empty")):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        if name != "empty":
            (run / "proxy.log").touch()
        os.utime(run, (number, number))
    assert newest_run(tmp_path / "runs") == tmp_path / "runs" / "new"


class Followed:
    """`follow` in a thread of its own, with what it has said so far."""

    def __init__(self, records: Iterator[Record]) -> None:
        self.texts: list[str] = []
        threading.Thread(target=self._read, args=(records,), daemon=True).start()

    def _read(self, records: Iterator[Record]) -> None:
        for record in records:
            self.texts.append(record.text)

    def until(self, *texts: str) -> None:
        deadline = time.monotonic() + 20
        while self.texts != list(texts):
            assert time.monotonic() < deadline, self.texts
            time.sleep(0.02)


def test_following_a_file_through_a_rotation(logs: Path) -> None:
    followed = Followed(follow([File(logs / "prefill.log")], Filter((), ()), NOW, last=1))
    followed.until("p3\nmore of p3")
    with (logs / "prefill.log").open("a") as log:
        log.write(line(4, "p4")[:10])
        log.flush()
        log.write(line(4, "p4")[10:])
    followed.until("p3\nmore of p3", "p4")
    (logs / "prefill.log").rename(logs / "prefill.log.1")
    (logs / "prefill.log").write_text(line(5, "p5"))
    followed.until("p3\nmore of p3", "p4", "p5")


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journalctl that prints its arguments as a unit's line, then one more later."""
    tool = tmp_path / "bin" / "journalctl"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\n"
        f'printf "2026-11-30T10:59:01+0000 node neuron-pd-decode[1]: {line(1, "$*").strip()}\\n"\n'
        'case "$*" in *--follow*) sleep 0.5; '
        f'printf "2026-11-30T10:59:02+0000 node neuron-pd-decode[1]: {line(2, "later").strip()}\\n"; sleep 60;; esac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return tool


def test_the_journal_of_units(journalctl: Path) -> None:
    (record,) = read([Journal(["neuron-pd-decode"], "2026-11-30 10:00:00")], Filter(), NOW)
    assert record.source == "decode"
    assert "--unit=neuron-pd-decode --since=2026-11-30 10:00:00" in record.text


def test_following_the_journal(journalctl: Path) -> None:
    followed = Followed(follow([Journal(["neuron-pd-*"])], Filter((), ("later",)), NOW, last=5))
    followed.until("later")


def test_a_journal_that_cannot_be_read(journalctl: Path) -> None:
    journalctl.write_text(
        "#!/bin/sh\necho 'No journal files were opened due to insufficient permissions.' >&2\nexit 1\n"
    )
    with pytest.raises(UsageError, match=r"no journal of x .*insufficient permissions.*: name the log files"):
        read([Journal(["x"])], Filter(), NOW)


def test_no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="journalctl is not installed"):
        read([Journal(["x"])], Filter(), NOW)
