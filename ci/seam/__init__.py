"""The static check of every vLLM name that the connector touches, against releases that are read and never imported."""
