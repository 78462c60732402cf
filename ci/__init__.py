"""The test matrix and its runner."""
