from neuron_pd.plan.simulation.kernel import Kernel, Line, Process


def test_processes_go_on_in_the_order_of_time_and_then_of_scheduling() -> None:
    kernel, seen = Kernel(), []

    def process(name: str, *waits: float) -> Process:
        for wait in waits:
            yield wait
            seen.append((name, kernel.now))

    kernel.start(process("a", 2.0, 1.0))
    kernel.start(process("b", 1.0, 2.0))
    kernel.start(process("c", 0.5), delay=0.5)
    kernel.run()
    assert seen == [("b", 1.0), ("c", 1.0), ("a", 2.0), ("b", 3.0), ("a", 3.0)]


def test_a_line_is_left_in_the_order_in_which_it_was_joined() -> None:
    kernel, line, seen = Kernel(), Line(), []

    def waits(name: str) -> Process:
        yield line
        seen.append((name, kernel.now))

    def wakes() -> Process:
        while line:
            yield 1.0
            kernel.wake(line)

    for name in "abc":
        kernel.start(waits(name))
    kernel.start(wakes())
    kernel.run()
    assert seen == [("a", 1.0), ("b", 2.0), ("c", 3.0)]
