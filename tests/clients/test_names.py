"""What a client is called."""

import pytest

from tundish_client import AsyncClient, Client, ConfigError
from tundish_client.testing import ScriptedServer

KINDS = pytest.mark.parametrize("kind", [Client, AsyncClient])


def hello(reader, server, **options):
    client = reader(server, **options)
    client.run(client.client.ping())
    (said,) = server.kinds("HELLO")
    return said["client"]["name"]


def test_the_default(reader):
    with ScriptedServer([]) as server:
        assert hello(reader, server) == "tundish-client"


@pytest.mark.parametrize("name", ["a", "rank 3 of 8", "Züge\n", "x" * 200])
def test_a_name_goes_with_hello(reader, name):
    with ScriptedServer([]) as server:
        assert hello(reader, server, name=name) == name


def test_the_variable(reader, monkeypatch):
    monkeypatch.setenv("TUNDISH_CLIENT_NAME", "Trainer 7")
    with ScriptedServer([]) as server:
        assert hello(reader, server) == "Trainer 7"


def test_the_argument_wins_over_the_variable(reader, monkeypatch):
    monkeypatch.setenv("TUNDISH_CLIENT_NAME", "x" * 201)
    with ScriptedServer([]) as server:
        assert hello(reader, server, name="evaluation") == "evaluation"


def test_an_empty_variable_is_none(reader, monkeypatch):
    monkeypatch.setenv("TUNDISH_CLIENT_NAME", "")
    with ScriptedServer([]) as server:
        assert hello(reader, server) == "tundish-client"


@KINDS
@pytest.mark.parametrize("name", ["", 7, True, b"trainer", "\ud800", ["a"]])
def test_what_is_no_name_is_refused(kind, name):
    with pytest.raises(ConfigError, match=r"^name must be text, got "):
        kind("/tmp/nobody", name=name)


@KINDS
def test_a_name_that_is_too_long_is_refused_with_the_numbers(kind, monkeypatch):
    with pytest.raises(ConfigError, match=r"^name must have at most 200 characters, got 201: 'xx"):
        kind("/tmp/nobody", name="x" * 201)
    monkeypatch.setenv("TUNDISH_CLIENT_NAME", "x" * 300)
    with pytest.raises(ConfigError, match=r"^TUNDISH_CLIENT_NAME must have at most 200 .* 300:"):
        kind("/tmp/nobody")


def test_the_name_stays_over_a_loss(reader, path):
    with ScriptedServer([], path=path):
        client = reader(path, name="trial 3")
        client.run(client.client.ping())
    with ScriptedServer([], path=path) as server:
        client.run(client.client.ping())
        assert server.kinds("HELLO")[0]["client"]["name"] == "trial 3"
