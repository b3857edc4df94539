"""Rounds of consumers that come, lag, leave and are killed; see :mod:`soak.__main__`."""
