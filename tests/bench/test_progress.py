from rich.console import Console

from neuron_pd.bench.progress import doing, line, live
from neuron_pd.bench.records import Setting
from neuron_pd.bench.sweep import Step
from neuron_pd.core.transfer import TurnReport

from .making import record, report

AT = Setting(4096)


def test_a_line_for_each_turn() -> None:
    assert line(record("on", 4096, 2, 0.3124, report=report(3900, prompt=4300))) == (
        "ON    4,096 tokens  turn 2  TTFT     312 ms  read 3,900 of 4,300 tokens back"
    )
    assert line(record("on", 4096, 2, 2.5, report=report(0))).endswith("TTFT   2,500 ms  recomputed (not_offered)")
    assert line(record("off", 4096, 2, 2.5, report=report(0))).endswith("TTFT   2,500 ms")
    assert line(record(first_token=None)).endswith("TTFT        –")


def test_a_direct_turn_says_what_d_held() -> None:
    direct = TurnReport("direct", "cost", 4300, 4000, 0, 0, 4000)
    assert line(record("on", 4096, 2, 0.3, report=direct)).endswith("decoded directly, 4,000 of 4,300 tokens held")


def test_a_failed_turn_shows_its_error_as_it_is() -> None:
    assert line(record(error="HTTP 500: [red]no[/red]")).endswith("failed: HTTP 500: \\[red]no\\[/red][/red]")


def test_what_it_is_doing() -> None:
    assert doing(Step("on", AT, 0, 0, 8)) == "warm-up at 4,096 tokens"
    assert doing(Step("on", AT, 3, 5, 8)) == "ON  4,096 tokens, turn 3"


def test_live_prints_the_measured_turns() -> None:
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture, live(console) as on_step:
        on_step(Step("on", AT, 2, 0, 8))
        on_step(Step("on", AT, 2, 1, 8, record("on", 4096, 2, 0.25)))
    assert "TTFT     250 ms" in capture.get()
