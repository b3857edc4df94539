"""The version of the client distribution; see tests/api/test_versions.py."""

__version__ = "0.1.0"
