"""Random generators as plain data: read exactly, made anew, or set in place."""

from __future__ import annotations

import random
from typing import Any, Final, TypeAlias

import numpy as np

from mpickpt.errors import FormatError, StateError

Generator: TypeAlias = np.random.Generator | np.random.RandomState | random.Random
GENERATORS: Final = (np.random.Generator, np.random.RandomState, random.Random)
_BIT_GENERATORS: Final = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_WORDS: Final = 625


def read(generator: Generator, region: str | None = None) -> tuple[str, Any]:
    """Give a generator's kind and its state as plain data (dicts, ints, floats, arrays).

    The seed sequence that `Generator.spawn` draws on is no part of a bit generator's state, and is not saved.

    Raises
    ------
    StateError
        For a generator that has no state of a known kind: `random.SystemRandom`, a bit generator from elsewhere.
    """
    if isinstance(generator, random.Random):
        try:
            version, words, gauss = generator.getstate()
            state: Any = {"words": np.array(words, dtype="<u4"), "gauss": gauss}
            known = version == 3 and len(words) == _WORDS
        except (NotImplementedError, TypeError, ValueError, OverflowError):
            known = False
        if known:
            return "random.Random", state
    else:
        whole: Any = (
            generator.bit_generator.state
            if isinstance(generator, np.random.Generator)
            else generator.get_state(legacy=False)
        )
        if isinstance(whole, dict) and whole.get("bit_generator") in _BIT_GENERATORS:
            return f"numpy.{type(generator).__name__}", whole
    raise StateError(
        "a random generator without a state that can be saved",
        region=region,
        expected="random.Random, or a NumPy generator over " + ", ".join(_BIT_GENERATORS),
        found=type(generator).__name__,
        advice="train with one of these, or leave it out of the state",
    )


def make(kind: str, state: Any, region: str | None = None, path: str | None = None) -> Generator:
    """Make a generator of a kind and state that `read` gave.

    Raises
    ------
    FormatError
        If they are none of a generator.
    """
    try:
        if kind == "random.Random":
            words, gauss = state["words"], state["gauss"]
            if state.keys() != {"words", "gauss"} or words.dtype != np.uint32:
                raise ValueError("malformed state")
            plain = random.Random()
            plain.setstate((3, tuple(map(int, words)), gauss))
            return plain
        if kind not in ("numpy.Generator", "numpy.RandomState") or state["bit_generator"] not in _BIT_GENERATORS:
            raise ValueError("unknown kind")
        # NumPy takes a place in the buffer as it is given, and would read past the end of it.
        for where, last in ((state["state"].get("pos", 0), 624), (state.get("buffer_pos", 0), 4)):
            if type(where) is not int or not 0 <= where <= last:
                raise ValueError("a place outside the buffer")
        bits = getattr(np.random, state["bit_generator"])()
        if kind == "numpy.Generator":
            bits.state = state
            return np.random.Generator(bits)
        legacy = np.random.RandomState(bits)
        legacy.set_state(state)
        return legacy
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
        raise FormatError(
            "malformed state of a random generator",
            region=region,
            path=path,
            expected="a generator's kind and state",
            found=f"{str(kind)[:40]}: {str(error)[:100]}",
        ) from None


def same_kind(generator: Generator, source: Generator) -> bool:
    """Tell whether `set_from` can set `generator` from `source`: one class, and one kind of bit generator."""
    if isinstance(generator, random.Random):
        return isinstance(source, random.Random)
    if not isinstance(source, type(generator)):
        return False
    return bool(read(generator)[1]["bit_generator"] == read(source)[1]["bit_generator"])


def set_from(generator: Generator, source: Generator) -> None:
    """Set a generator in place to the state of another of the same kind."""
    if isinstance(generator, random.Random):
        assert isinstance(source, random.Random)
        generator.setstate(source.getstate())
    elif isinstance(generator, np.random.Generator):
        assert isinstance(source, np.random.Generator)
        generator.bit_generator.state = source.bit_generator.state
    else:
        assert isinstance(source, np.random.RandomState)
        generator.set_state(source.get_state(legacy=False))
