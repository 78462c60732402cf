"""Ours beside upstream's connector: the same engines, the same conversations, one machine, one run."""
