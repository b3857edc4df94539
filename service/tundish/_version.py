"""The version of the service distribution; see tests/api/test_versions.py."""

__version__ = "0.1.0"
