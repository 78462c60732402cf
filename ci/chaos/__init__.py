"""Engines, store and proxy killed at random under multi-turn load."""
