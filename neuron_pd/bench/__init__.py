"""The benchmark: the same conversations with reuse off and on, raw timestamps, figures, a report."""
