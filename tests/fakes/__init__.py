"""Engines that are not engines: real servers that behave, and misbehave, as told."""
