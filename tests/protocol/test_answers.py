"""Errors that answer requests: which of them have a traceback, and what too many streams get."""

import pytest

from helpers.raw import epoch, hello
from helpers.wire import decoder, feed
from tundish_client import ConfigError
from tundish_client._protocol.asking import EpochAsked
from tundish_client._protocol.frames import encode_message
from tundish_client._protocol.server import MAX_STREAMS, ServerConnection
from tundish_client._protocol.wire_errors import decode_exception, encode_refusal
from tundish_client.config import check_int


def say(conn: ServerConnection, data: bytes) -> list:
    conn.get_buffer()[: len(data)] = data
    return conn.receive(len(data))


def said(conn: ServerConnection) -> list:
    return feed(decoder(), b"".join(conn.data_to_send()))


@pytest.fixture
def conn() -> ServerConnection:
    conn = ServerConnection()
    say(conn, hello())
    conn.welcome({}, "here", shared_memory=False)
    conn.data_to_send()
    return conn


def raised(cause):
    try:
        cause()
    except Exception as error:
        return error
    raise AssertionError


class Spiteful(Exception):
    @property
    def __cause__(self):
        raise ZeroDivisionError


def of_the_user():
    raise ConfigError("a dataset's own")


def from_the_users():
    try:
        of_the_user()
    except ConfigError:
        check_int("start", 1.5, 0)


OURS = {
    "raised by the service": lambda: raised_by_the_service(1.5),
    "never raised": lambda: TimeoutError("group 'g'"),
}
THEIRS = {
    "raised by user code": lambda: raised(of_the_user),
    "raised by the service out of user code": lambda: raised(from_the_users),
    "no error of Tundish": lambda: raised(lambda: int("x")),
    "that can't be looked at": lambda: raised(lambda: (_ for _ in ()).throw(Spiteful())),
    "a group": lambda: ExceptionGroup("several", [raised(of_the_user)]),
}


def raised_by_the_service(value):
    """What this module is in the way of is cut off, as it is in a service."""
    error = raised(lambda: check_int("start", value, 0))
    while error.__traceback__.tb_frame.f_globals["__name__"] == __name__:
        error.__traceback__ = error.__traceback__.tb_next
    return error


@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_errors_of_the_service_itself_have_no_traceback(make):
    error = make()
    got = decode_exception(encode_refusal(error))
    assert (type(got), str(got)) == (type(error), str(error))
    assert got.remote_traceback == "" and not hasattr(got, "__notes__")


@pytest.mark.parametrize("make", THEIRS.values(), ids=THEIRS)
def test_errors_with_user_code_in_their_way_have_one(make):
    got = decode_exception(encode_refusal(make()))
    assert got.remote_traceback.rstrip()
    assert got.__notes__[-1] == "Traceback in the server:\n" + got.remote_traceback.rstrip()


def test_streams_and_requests_are_answered_so(conn):
    (asked,) = say(conn, epoch(7))
    error = raised_by_the_service(-1)
    conn.stream_error(asked.stream, error)
    conn.request_error(3, error)
    conn.connection_error(error)
    headers = [message.header for message in said(conn)]
    assert [header["traceback"] for header in headers] == ["", "", ""]
    assert [header.get("stream") for header in headers] == [7, None, None]
    assert [header.get("request") for header in headers] == [None, 3, None]


def test_the_stream_that_is_too_much_is_refused_and_no_other(conn):
    for number in range(1, MAX_STREAMS + 1):
        assert type(say(conn, epoch(number))[0]) is EpochAsked
    assert say(conn, epoch(MAX_STREAMS + 1)) == []
    (message,) = said(conn)
    assert (message.kind, message.header["stream"]) == ("ERROR", MAX_STREAMS + 1)
    error = decode_exception(message.header)
    assert type(error) is ConfigError
    assert "1024 streams open" in str(error) and "open another client" in str(error)
    assert not hasattr(error, "__notes__")
    assert conn.failed is None and len(conn.streams) == MAX_STREAMS
    # What the client says of it is passed over, and one that is closed makes room.
    refused = MAX_STREAMS + 1
    for kind, more in (("ACK", {"batch": 0}), ("CREDIT", {"credits": {"batches": 1, "bytes": 1}})):
        assert say(conn, encode_message(kind, {"stream": refused, **more})) == []
    assert say(conn, encode_message("CANCEL", {"stream": refused})) == []
    assert len(say(conn, encode_message("CANCEL", {"stream": 1}))) == 1
    assert type(say(conn, epoch(refused + 1))[0]) is EpochAsked
    assert conn.failed is None
