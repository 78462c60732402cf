"""The multi-turn proxy: one P/D turn per request, and the memory of which decode engine holds which conversation."""
