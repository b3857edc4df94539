"""Exceptions cross the wire with type, arguments, attributes and traceback, and harm nobody."""

import asyncio
import concurrent.futures
import itertools
import subprocess
import sys
import threading
import time
import traceback
import types
import urllib.error

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.wire import MIB, decoder, feed, send_error
from tundish_client import errors
from tundish_client._protocol.frames import encode_message
from tundish_client._protocol.resolving import Ref
from tundish_client._protocol.values import unpack
from tundish_client._protocol.wire_errors import decode_exception, encode_exception
from tundish_client.errors import RemoteError


class Two(Exception):
    def __init__(self, a, b):
        self.a, self.b = a, b


class Keyword(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")
        self.code = code


class Refusing(Exception):
    def __new__(cls, *args):
        if not args:
            raise TypeError("needs an argument")
        return super().__new__(cls, *args)

    def __init__(self, *args):
        raise AssertionError("the client must not call constructors")


class Locked(Exception):
    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()
        self.code = 5


class NoReduce(Exception):
    def __reduce__(self):
        raise ValueError("no")


class NoText(Exception):
    def __str__(self):
        raise ValueError("no text")

    __repr__ = __str__


class Slotted(Exception):
    __slots__ = ("code", "empty")


class Stubborn(Exception):
    @property
    def where(self):
        return "here"

    def __setattr__(self, name, value):
        raise AssertionError("the client must not run code of the class")


class File(OSError):
    def __init__(self, path):
        super().__init__(2, "gone", path)
        self.path = path


REBUILT = [
    (subprocess.CalledProcessError(3, "cmd"), {"returncode": 3, "cmd": "cmd"}),
    (urllib.error.HTTPError("u", 404, "nf", {}, None), {"code": 404, "msg": "nf", "filename": "u"}),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), {"start": 0, "end": 1, "object": b"\xff"}),
    (UnicodeEncodeError("ascii", "é", 0, 1, "bad"), {"object": "é", "reason": "bad"}),
    (FileNotFoundError(2, "No such", "/x/y"), {"errno": 2, "filename": "/x/y"}),
    (OSError(18, "cross", "a", None, "b"), {"filename": "a", "filename2": "b"}),
    (OSError("just text"), {"errno": None}),
    (File("/p"), {"errno": 2, "filename": "/p", "path": "/p"}),
    (Two(1, (2, [3])), {"a": 1, "b": (2, [3])}),
    (Keyword(code=7), {"code": 7}),
    (KeyError("k"), {"args": ("k",)}),
    (KeyError((1, 2**70)), {"args": ((1, 2**70),)}),
    (ImportError("no x", name="x", path="/p"), {"name": "x", "path": "/p", "msg": "no x"}),
    (ModuleNotFoundError("no x", name="x"), {"name": "x"}),
    (NameError("n", name="n"), {"name": "n"}),
    (AttributeError("a", name="n", obj=(3,)), {"name": "n", "obj": (3,)}),
    (SyntaxError("bad", ("f.py", 1, 2, "x y", 1, 3)), {"filename": "f.py", "lineno": 1}),
    (ValueError(np.float32(1.5), None, b"x"), {"args": (np.float32(1.5), None, b"x")}),
    (NoReduce("x"), {"args": ("x",)}),
    (TimeoutError("late"), {"args": ("late",)}),
    (ConnectionResetError(104, "reset"), {"errno": 104, "strerror": "reset"}),
    (ZeroDivisionError(), {"args": ()}),
    (concurrent.futures.BrokenExecutor("b"), {"args": ("b",)}),
]


@pytest.mark.parametrize(("exc", "expected"), REBUILT, ids=lambda v: type(v).__name__)
def test_type_arguments_and_attributes(exc, expected):
    # HTTPError has a file that asks for attributes in its own way.
    args, text = exc.args, str(exc)
    got = send_error(exc)
    assert type(got) is type(exc)
    assert got.args == args
    assert str(got) == text
    for name, value in expected.items():
        assert getattr(got, name) == value
        assert type(getattr(got, name)) is type(value)
    assert "Traceback (most recent call last)" in got.remote_traceback
    assert type(exc).__name__ in got.remote_traceback
    assert got.remote_traceback.strip() in vars(got)["__notes__"][-1]
    with pytest.raises(type(exc)) as caught:
        raise got
    assert caught.value is got
    assert "Traceback in the server" in "".join(traceback.format_exception(got))


def test_slots_are_attributes():
    exc = Slotted("x")
    exc.code = 4
    got = send_error(exc)
    assert got.code == 4
    assert not hasattr(got, "empty")


def test_no_code_of_the_class_runs():
    exc = Exception.__new__(Refusing, 1)
    got = send_error(exc)
    assert type(got) is Refusing
    stubborn = Stubborn("s")
    vars(stubborn)["where"] = "there"
    vars(stubborn)["code"] = 3
    got = send_error(stubborn)
    assert (type(got), got.code, got.where) == (Stubborn, 3, "here")


def test_every_error_of_ours_survives():
    def walk(cls):
        yield cls
        for sub in cls.__subclasses__():
            yield from walk(sub)

    for cls in walk(errors.TundishError):
        got = send_error(cls("text"))
        assert type(got) is cls
        assert got.args == ("text",)
    lost = errors.ConnectionLost("gone", position=(3, 4))
    assert send_error(lost).position == (3, 4)
    first = RemoteError("m", "pkg.Odd", "tb")
    assert (send_error(first).type_name, str(send_error(first))) == ("pkg.Odd", "pkg.Odd: m")


@pytest.mark.parametrize(
    "exc",
    [
        SystemExit(3), KeyboardInterrupt("k"), GeneratorExit("g"), StopIteration(4),
        StopAsyncIteration("s"), asyncio.CancelledError("c"),
        BaseExceptionGroup("b", [SystemExit(1)]),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_control_flow_never_arrives_as_such(exc):
    got = send_error(exc)
    assert type(got) is RemoteError
    assert got.type_name.endswith(type(exc).__qualname__)
    assert type(exc).__qualname__ in str(got)


def test_system_exit_says_its_status():
    assert "SystemExit(3)" in str(send_error(SystemExit(3)))


def test_a_class_not_imported_here_is_named(monkeypatch):
    module = types.ModuleType("only_in_the_server")
    exec("class Odd(ValueError):\n    class Inner(Exception): pass\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_in_the_server", module)
    headers = [encode_exception(module.Odd("o", 1)), encode_exception(module.Odd.Inner("i"))]
    assert [type(decode_exception(h)) for h in headers] == [module.Odd, module.Odd.Inner]
    monkeypatch.delitem(sys.modules, "only_in_the_server")
    odd, inner = map(decode_exception, headers)
    assert type(odd) is type(inner) is RemoteError
    assert odd.type_name == "only_in_the_server.Odd"
    assert inner.type_name == "only_in_the_server.Odd.Inner"
    assert "('o', 1)" in str(odd)
    assert isinstance(odd.remote_traceback, str)
    assert "only_in_the_server" not in sys.modules


@pytest.mark.parametrize(
    "names",
    [
        ["os", "system"], ["builtins", "print"], ["builtins", "int"], ["builtins", "BaseException"],
        ["antigravity", "X"], ["this", "X"], ["tests", ""], ["", ""], ["sys", "modules"],
        None, [1, 2], "x",
        ["builtins", "ValueError.__init__"], ["lazy_module", "Lazy"], ["builtins", "StopIteration"],
    ],
    ids=str,
)  # fmt: skip
def test_a_name_from_the_peer_imports_and_calls_nothing(names, monkeypatch):
    lazy = types.ModuleType("lazy_module")
    lazy.__getattr__ = lambda name: pytest.fail("looked up by code of the module")
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)
    before = set(sys.modules)
    got = decode_exception({"type": names, "message": "m", "args": ["true"]})
    assert set(sys.modules) == before
    assert isinstance(got, Exception)
    assert type(got) in (RemoteError, Exception)


def test_attributes_that_cannot_be_sent_are_named():
    got = send_error(Locked())
    assert type(got) is Locked
    assert got.code == 5
    assert not hasattr(got, "lock")
    assert any("attribute lock (_thread.lock) was left out" in note for note in got.__notes__)
    got = send_error(ValueError(threading.Lock(), 3))
    assert got.args[0].startswith("<unlocked _thread.lock")
    assert got.args[1] == 3
    assert any("argument 0 (_thread.lock)" in note for note in got.__notes__)
    got = send_error(AttributeError("a", name="n", obj=object()))
    assert got.name == "n"


def test_a_text_that_raises():
    got = send_error(NoText(NoText("inner")))
    assert type(got) is NoText
    assert "NoText" in got.remote_traceback
    assert got.args == ("<test_wire_errors.NoText>",) or "NoText" in got.args[0]
    header = encode_exception(NoText())
    assert "NoText" in header["message"]


def test_huge_parts_are_cut_to_the_documented_sizes():
    exc = ValueError("é" * 5_000_000, b"x" * MIB, ["y" * 30_000] * 40)
    exc.blob = dict.fromkeys(range(3), "z" * 60000)
    for i in range(300):
        setattr(exc, f"a{i}", "v" * 10_000)
        exc.add_note("n" * 10_000)
    header = encode_exception(exc)
    assert len(header["message"].encode()) <= 64 * 1024
    assert "characters in all)" in header["message"]
    assert len(header["traceback"].encode()) <= 128 * 1024
    assert sum(len(note.encode()) for note in header["notes"]) <= 65 * 1024
    data = encode_message("ERROR", header)
    assert len(data) < MIB // 2 + 128 * 1024
    (message,) = feed(decoder(), data)
    got = decode_exception(message.header)
    assert type(got) is ValueError
    assert got.args[0].startswith("ééé")


def test_a_message_of_50_mb_is_cut_in_time():
    started = time.monotonic()
    header = encode_exception(RuntimeError("x" * 50_000_000))
    assert time.monotonic() - started < 2
    assert header["message"].endswith("(cut, 50000000 characters in all)")
    assert header["message"].startswith("xxx")
    assert len(header["message"]) == 64 * 1024


def test_a_chain_with_a_cycle():
    a, b, c = ValueError("first"), KeyError("second"), RuntimeError("third")
    a.__cause__, b.__cause__, c.__cause__ = b, c, a
    got = send_error(a)
    for text in ("first", "second", "third", "direct cause"):
        assert text in got.remote_traceback


def test_notes_come_along():
    exc = ValueError("v")
    exc.add_note("index 7")
    exc.__notes__.append(3)
    got = send_error(exc)
    assert got.__notes__[0] == "index 7"
    assert len(got.__notes__) == 2
    exc.__notes__ = 5
    assert len(send_error(exc).__notes__) == 1


def test_groups_keep_their_members():
    group = ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [Two(2, 3), KeyError("k")])])
    got = send_error(group)
    assert type(got) is ExceptionGroup
    assert got.message == "g"
    assert got.exceptions[1].exceptions[0].a == 2
    with pytest.raises(ExceptionGroup):
        try:
            raise got
        except* KeyError:
            pass
    many = ExceptionGroup("m", [ValueError(i) for i in range(100)])
    got = send_error(many)
    assert len(got.exceptions) == 32
    assert any("68 exceptions of the group were left out" in note for note in got.__notes__)
    deep = ValueError(0)
    for _ in range(50):
        deep = ExceptionGroup("d", [deep])
    assert isinstance(send_error(deep), Exception)


def test_surrogates_in_names_and_texts():
    got = send_error(FileNotFoundError(2, "No such", "/x/\udcff"))
    assert type(got) is FileNotFoundError
    assert got.errno == 2
    assert got.filename == "/x/\udcff"
    assert str(got) == "[Errno 2] No such: '/x/\\udcff'"
    got = send_error(ValueError("bad name: \udcff", "b\ud800"))
    assert got.args == ("bad name: \udcff", "b\ud800")
    assert "\\udcff" in got.remote_traceback
    assert "\\udcff" in send_error(ValueError("\udcff" * 5000)).args[0]


@pytest.mark.parametrize("data", [b"\xff", b"\xed\xb3"])
def test_what_is_no_str_of_surrogates_is_a_text_about_it(data):
    header = {"type": ["builtins", "ValueError"], "message": "m", "args": [Ref(8, data)]}
    assert "surrogates" in decode_exception(header).args[0]


def test_a_deep_recursion():
    def down():
        down()

    try:
        down()
    except RecursionError as error:
        got = send_error(error)
    assert type(got) is RecursionError
    assert "more times" in got.remote_traceback


def test_errors_of_groups_without_traceback():
    assert encode_exception(ValueError("v"))["traceback"] == "ValueError: v\n"


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        "ValueError",
        "OSError",
        "UnicodeDecodeError",
        "ExceptionGroup",
        "SyntaxError",
        "KeyError",
        "Nope",
    ]
)


@settings(deadline=None, max_examples=300)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.tuples(st.just("builtins"), NAMES).map(list) | TREES,
            "message": TREES, "args": TREES, "attributes": TREES, "traceback": TREES,
            "notes": TREES, "group": TREES,
        },
    )
)  # fmt: skip
def test_any_header_gives_an_exception(header):
    got = decode_exception(unpack(msgpack.packb(header)))
    assert isinstance(got, Exception)
    str(got)
    repr(got)
    assert isinstance(got.remote_traceback, str)


def test_attributes_cannot_reach_behind_the_exception():
    names = ["__class__", "__dict__", "__traceback__", "__cause__", "args", "with_traceback"]
    header = {"type": ["builtins", "ValueError"], "args": [1]}
    for name, value in itertools.product(names, ["x", None, 3]):
        got = decode_exception({**header, "attributes": {name: value}})
        assert type(got) is ValueError
        assert got.__traceback__ is None
        assert got.__cause__ is None
