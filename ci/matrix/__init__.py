"""The cross-accelerator test matrix: its legs, what one needs of a machine, and how its outcome is written down."""
