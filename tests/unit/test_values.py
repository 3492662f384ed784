"""Opaque values: exact types and bits back, and nothing else in."""

from __future__ import annotations

import enum
import math
import random
import struct
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from mpickpt import canonical
from mpickpt.errors import FormatError, StateError
from mpickpt.state import dtypes, generators, values

NAN = struct.unpack(">d", bytes.fromhex("fff80000deadbeef"))[0]


def same(one: Any, two: Any) -> bool:
    """Equal types, structure and bits."""
    if type(one) is not type(two):
        return False
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", two)
    if isinstance(one, complex):
        return same(one.real, two.real) and same(one.imag, two.imag)
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, dict):
        return same(list(one.items()), list(two.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@pytest.mark.parametrize(
    "x",
    [
        None,
        True,
        0,
        -7,
        10**4000,
        -(1 << 4096),
        (1 << 4096) - 1,
        0.1,
        -0.0,
        math.inf,
        -math.inf,
        NAN,
        5e-324,
        complex(-0.0, NAN),
        "",
        "é\n\x00\u2028",
        b"\x00\xff",
        bytearray(b"ab"),
        (),
        [],
        {},
        set(),
        frozenset({(1, 2), "a"}),
        {3, "a", None, 2.5},
        {1: "a", "1": "b", (1, 2): [None, {"x": ()}], None: 1.0},
        {"z": 1, "a": 2},
        [1, [2, (3, [4])]],
        np.float32(0.1),
        np.int8(-3),
        np.bool_(True),
        np.complex64(1 - 2j),
        np.float64(-0.0),
        np.zeros((0, 3), "float32"),
        np.array(3, "uint16"),
        np.arange(6, dtype="int32").reshape(2, 3).T,
    ],
    ids=lambda x: type(x).__name__,
)
def test_round_trip(x: Any) -> None:
    data = values.encode(x, "v")
    assert same(values.decode(data, "v"), x)
    assert values.encode(values.decode(data), "v") == data


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_arrays_and_scalars_of_every_dtype(name: str) -> None:
    bits = np.arange(dtypes.itemsize(name) * 4, dtype="uint8")
    array = (bits % 2 if name == "bool" else bits).view(dtypes.dtype_of(name))
    assert same(values.decode(values.encode(array)), array)
    assert same(values.decode(values.encode(array[1])), array[1])
    swapped = array.astype(array.dtype.newbyteorder(">"))
    assert values.encode(swapped) == values.encode(array)


def test_literal_form() -> None:
    assert (
        values.encode((1, [-0.5, None], {2: "é"}, b"a"))
        == (
            '{"tuple":[{"int":"1"},[{"f64":"-0x1.0000000000000p-1"},null],{"dict":[[{"int":"2"},"é"]]},{"bytes":"YQ=="}]}'
        ).encode()
    )
    assert values.encode(NAN) == b'{"f64":"nan:fff80000deadbeef"}'
    assert values.encode(np.int16(258)) == b'{"numpy":["int16","AgE="]}'
    assert values.encode(np.array([[1]], ">u2")) == b'{"array":["uint16",[1,1],"AQA="]}'


def test_sets_have_one_form_whatever_their_order() -> None:
    one, two = set(), set()
    for i in range(0, 64, 8):  # hashes that collide in a small table: iterated in the order of insertion
        one.add(i)
        two.add(56 - i)
    assert list(one) != list(two)
    assert values.encode(one) == values.encode(two)


class Color(enum.IntEnum):
    RED = 1


class Label(str):
    __slots__ = ()


def _cycle() -> list[Any]:
    x: list[Any] = []
    x.extend([x, x])
    return x


def _deep() -> Any:
    x: Any = 0
    for _ in range(values.MAX_DEPTH + 1):
        x = [x]
    return x


@pytest.mark.parametrize(
    "x",
    [
        object(),
        Color.RED,
        Label("a"),
        OrderedDict(a=1),
        np.longdouble(1),
        np.str_("a"),
        np.datetime64(0, "s"),
        np.array(["a"]),
        np.array([None]),
        np.ma.masked_array([1], [True]),
        range(3),
        len,
        int,
        "\ud800",
        {"\udfff": 1},
        ["a", "\ud800"],
        random.SystemRandom(),
        _cycle(),
        _deep(),
        {1: [object()]},
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_would_not_come_back_is_refused_by_name(x: Any) -> None:
    with pytest.raises(StateError) as caught:
        values.encode(x, "opt/lr")
    assert caught.value.region == "opt/lr"


def test_deepest_value_comes_back() -> None:
    x: Any = {}
    for level in range(values.MAX_DEPTH - 1):
        x = {level: x} if level % 2 else (x,)
    assert values.decode(values.encode(x)) == x


@pytest.mark.parametrize(
    "plain",
    [
        1,
        {},
        {"int": "1", "f64": "0x0.0p+0"},
        {"what": 1},
        {"int": 1},
        {"int": "01"},
        {"int": "1_0"},
        {"int": " 1"},
        {"int": "0x10"},
        {"int": "9" * 5000},
        {"int": None},
        {"int": ["0x1"]},
        {"f64": "0.5"},
        {"f64": "nan"},
        {"f64": "nan:7ff0000000000000"},
        {"f64": "nan:zz"},
        {"f64": None},
        {"f64": "0x1p+99999"},
        {"complex": ["0x0.0p+0"]},
        {"complex": None},
        {"bytes": "YQ"},
        {"bytes": "YR=="},
        {"bytes": "é"},
        {"bytes": 3},
        {"bytearray": {}},
        {"tuple": "ab"},
        {"tuple": {}},
        {"dict": [[None]]},
        {"dict": [[[], None]]},
        {"dict": [["a", None], ["a", None]]},
        {"dict": None},
        {"set": ["b", "a"]},
        {"set": ["a", "a"]},
        {"set": [[]]},
        {"frozenset": "ab"},
        {"numpy": ["float32", "AA=="]},
        {"numpy": ["longdouble", "AA=="]},
        {"numpy": [["int8"], "AA=="]},
        {"numpy": "int8"},
        {"array": ["int8", [2], "AA=="]},
        {"array": ["int8", [-1], "AA=="]},
        {"array": ["int8", [True], "AA=="]},
        {"array": ["int8", "1", "AA=="]},
        {"array": ["int8", [1] * 65, "AA=="]},
        {"generator": ["numpy.Generator", {"dict": []}]},
        {"generator": ["os.system", "ls"]},
        {"generator": [None, None]},
        {"generator": "random.Random"},
    ],
    ids=lambda plain: repr(plain)[:40],
)
def test_values_that_nobody_writes(plain: Any) -> None:
    with pytest.raises(FormatError) as caught:
        values.decode(canonical.dumps(plain), "v", "file")
    assert (caught.value.region, caught.value.path) == ("v", "file")


@pytest.mark.parametrize("data", [b"", b"{", b"[1.5]", b"\xff", b"[" * 100_000, b' {"int":"1"}'])
def test_bytes_that_are_no_value(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        values.decode(data, "v", "file")
    assert (caught.value.region, caught.value.path) == ("v", "file")


@pytest.mark.parametrize(
    ("x", "found"),
    [
        (1.0, False),
        (math.inf, True),
        (complex(0, math.nan), True),
        ([1, {"a": (math.nan,)}], True),
        ({math.inf: 1}, True),
        (np.float16("nan"), True),
        (np.array([1, 2]), False),
        ([np.array([0, np.inf], "complex64")], True),
        (np.array([1, math.nan]).astype(dtypes.dtype_of("float8_e4m3fn")), True),
        (np.array([1, math.inf]).astype(dtypes.dtype_of("bfloat16")), True),
        ("nan", False),
        (frozenset({math.inf}), True),
        (None, False),
    ],
)
def test_nonfinite(x: Any, found: bool) -> None:
    assert values.nonfinite(x) is found


GENERATORS = [
    *(
        np.random.Generator(getattr(np.random, bits)(5))
        for bits in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
    ),
    np.random.RandomState(3),
    np.random.RandomState(np.random.PCG64(3)),
    random.Random(4),
]


def draw(rng: Any) -> list[float]:
    if isinstance(rng, random.Random):
        return [rng.gauss(0, 1) for _ in range(3)] + [float(rng.getrandbits(64))]
    return [float(x) for x in rng.standard_normal(3)] + [float(rng.bytes(3)[0])]


@pytest.mark.parametrize("rng", GENERATORS, ids=lambda rng: f"{type(rng).__name__}")
def test_generators_go_on_where_they_were(rng: Any) -> None:
    draw(rng)  # leaves half a pair of gaussians, half a 64-bit word
    data = values.encode(rng)
    ahead = draw(rng)
    made = values.decode(data)
    assert type(made) is type(rng)
    assert draw(made) == ahead
    generators.set_from(rng, values.decode(data))
    assert draw(rng) == ahead


def test_generators_of_another_kind() -> None:
    rng = np.random.default_rng(1)
    assert generators.same_kind(rng, np.random.default_rng(2))
    assert not generators.same_kind(rng, np.random.Generator(np.random.MT19937(2)))
    assert not generators.same_kind(rng, np.random.RandomState(2))
    assert not generators.same_kind(random.Random(), rng)


@pytest.mark.parametrize(
    ("rng", "where", "bad"),
    [(np.random.RandomState(1), "pos", 10**6), (np.random.Generator(np.random.Philox(1)), "buffer_pos", -1)],
)
def test_a_place_outside_a_generators_buffer_is_refused(rng: Any, where: str, bad: int) -> None:
    kind, state = generators.read(rng)
    (state["state"] if where == "pos" else state)[where] = bad
    with pytest.raises(FormatError):
        generators.make(kind, state, "rng")
