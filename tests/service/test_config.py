"""Options: arguments, variables, defaults, and how wrong ones are named."""

import pytest

from tundish.config import ServeConfig, default_memory_limit
from tundish_client import ConfigError

MIB = 2**20


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in (
        "SOCKET", "MEMORY_LIMIT", "SOCKET_MODE", "LOOP", "LEASE_QUOTA", "ALLOWED_UIDS",
        "SHARE_WINDOW", "JOIN_TIMEOUT", "LEASE_TIMEOUT", "METRICS",
    ):  # fmt: skip
        monkeypatch.delenv(f"TUNDISH_{name}", raising=False)


def test_defaults():
    config = ServeConfig.of()
    assert config.socket is None
    assert config.socket_mode == 0o600
    assert config.memory_limit is None
    assert config.lease_quota == 64
    assert config.share_window == 32 * MIB
    assert (config.join_timeout, config.lease_timeout) == (60, 60)
    assert config.metrics is None
    assert config.loop == "uvloop"


def test_an_argument_wins_over_its_variable(monkeypatch):
    monkeypatch.setenv("TUNDISH_SOCKET", "/from/variable")
    monkeypatch.setenv("TUNDISH_SOCKET_MODE", "0660")
    assert ServeConfig.of(socket=None).socket == "/from/variable"
    assert ServeConfig.of(socket="/given").socket == "/given"
    assert ServeConfig.of().socket_mode == 0o660
    assert ServeConfig.of(socket_mode=0o666).socket_mode == 0o666


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1073741824", 2**30),
        ("1GiB", 2**30),
        ("1.5g", 3 * 2**29),
        ("64 MB", 64 * MIB),
        (2**25, 2**25),
    ],
)
def test_bytes_may_have_a_unit(text, nbytes):
    assert ServeConfig.of(memory_limit=text).memory_limit == nbytes


def test_uids_are_separated_by_commas(monkeypatch):
    monkeypatch.setenv("TUNDISH_ALLOWED_UIDS", "1000, 1001")
    assert ServeConfig.of().allowed_uids == (1000, 1001)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_limit", "lots"),
        ("memory_limit", 5),
        ("socket_mode", "rw"),
        ("socket_mode", 0o1777),
        ("loop", "trio"),
        ("lease_quota", -1),
        ("allowed_uids", "root"),
        ("share_window", "wide"),
        ("share_window", -1),
        ("join_timeout", 0),
        ("join_timeout", "soon"),
        ("join_timeout", float("nan")),
        ("lease_timeout", float("inf")),
        ("metrics", "9400"),
        ("metrics", ":9400"),
        ("metrics", "localhost:http"),
        ("metrics", "localhost:65536"),
        ("metrics", 9400),
    ],
)
def test_a_wrong_value_is_named(name, value):
    with pytest.raises(ConfigError) as caught:
        ServeConfig.of(**{name: value})
    assert str(caught.value).startswith(f"{name}=")
    assert "\n" not in str(caught.value)


def test_variables_of_sharing_and_metrics(monkeypatch):
    monkeypatch.setenv("TUNDISH_SHARE_WINDOW", "1.5MiB")
    monkeypatch.setenv("TUNDISH_JOIN_TIMEOUT", "2.5")
    monkeypatch.setenv("TUNDISH_LEASE_TIMEOUT", "3")
    monkeypatch.setenv("TUNDISH_METRICS", "[::1]:9400")
    config = ServeConfig.of()
    assert config.share_window == 3 * MIB // 2
    assert (config.join_timeout, config.lease_timeout) == (2.5, 3)
    assert config.metrics == "[::1]:9400"


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv("TUNDISH_MEMORY_LIMIT", "lots")
    with pytest.raises(ConfigError, match=r"^TUNDISH_MEMORY_LIMIT='lots'"):
        ServeConfig.of()


def test_it_is_frozen():
    config = ServeConfig.of()
    with pytest.raises(ValueError, match="frozen"):
        config.loop = "asyncio"


def test_the_default_memory_limit_fits_the_machine():
    assert 64 * MIB <= default_memory_limit() <= 4096 * MIB
