"""What an engine counts beside vLLM's own metrics: names, meanings, labels. docs/metrics.md lists them."""

NAME = "neuron_pd_{}"
# metric: (what it counts, its labels)
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "acquires": ("Requests for a lease on a finished turn", ("outcome",)),
    "records": ("Finished turns, recorded or refused", ("outcome",)),
    "pins": ("Turns to be retained in pin mode", ("outcome",)),
    "leases": ("Leases ended, by how", ("end",)),
    "turns": ("Prefill legs, by how the prompt's KV came about and why", ("path", "reason")),
    "tokens": ("Prompt tokens of prefill legs: offered in leases, verified, refused, reused, local", ("kind",)),
    "hand_offs": ("Hand-offs that did not hold together and were computed instead", ("outcome",)),
}
# metric: (what it observes, its buckets)
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "read_back_seconds": (
        "Read-backs, from being queued to the last byte",
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    ),
    "read_back_bytes": ("Bytes of KV in a read-back, all ranks", tuple(4.0**n * 1024 for n in range(2, 14))),
    "expected_error_seconds": (
        "How far a prefill leg's duration was from what was expected of the chosen path",
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    ),
}
GAUGES = {
    "open_leases": "Leases that are open",
    "pinned_blocks": "KV blocks held by leases, retained turns included",
    "retained_blocks": "KV blocks held between turns (pin mode)",
    "ledger_records": "Finished turns on record",
    "ledger_bytes": "Bytes of those records",
}
