"""Records and the names of a run's files."""

from __future__ import annotations

import hashlib
import json

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mpickpt.errors import DeadlineError, FormatError, IntegrityError, StateError
from mpickpt.format import names
from mpickpt.format.records import Claim, RunInfo, Void, record, unrecord

D = "blake3:" + "1f" * 32


def test_a_record_is_two_lines_that_anyone_can_check() -> None:
    data, digest = record({"format": 1, "b": [1, "é"], "a": None})
    first, second, rest = data.split(b"\n")
    assert first == '{"a":null,"b":[1,"é"],"format":1}'.encode()
    assert rest == b""
    hashed = blake3(first, derive_key_context="mpickpt 1 record").hexdigest()
    assert json.loads(second) == {"digest": f"blake3:{hashed}"} == {"digest": digest}
    data, digest = record({"format": 1}, "sha256")
    assert digest == "sha256:" + hashlib.sha256(b"mpickpt 1 record\n" + b'{"format":1}').hexdigest()
    assert unrecord(data) == ({"format": 1}, digest)
    assert unrecord(data, digest=digest) == ({"format": 1}, digest)
    with pytest.raises(IntegrityError, match="another one"):
        unrecord(data, digest=D)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "é", ""]), plain))
def test_plain_data_comes_back(value: dict[str, object]) -> None:
    value = {**value, "format": 1}
    data, digest = record(value)
    assert unrecord(data) == (value, digest)


@pytest.mark.parametrize("bad", [1.5, float("inf"), [[0.0]], {"x": {"y": 1.0}}, {1: 1}, {1, 2}, "\udc80"])
def test_what_no_record_holds(bad: object) -> None:
    with pytest.raises(StateError):
        record({"format": 1, "value": bad})


def test_a_claim_carries_its_lineage() -> None:
    fresh = Claim(1, "run", None, None, None, 4, None, "n5", "now", "aa")
    assert fresh.lineage == ((1, None, None),)
    assert Claim.decode(fresh.encode()[0]) == fresh
    later = Claim(4, "run", 1, 12, D, 2, "job 7", "n6", "now", "bb", (*fresh.lineage, (4, 1, 12)))
    assert Claim.decode(later.encode("sha256")[0]) == later
    assert Claim.decode(later.encode()[0], digest=later.encode()[1]) == later


def test_a_void_says_the_refusal_again() -> None:
    error = DeadlineError(
        "an owner is silent", role=3, host="n5", expected="a beat", found=60, roles=[3], advice="look"
    )
    void = Void("000000000012-e00000001-5f0c", error.to_record())
    found = Void.decode(void.encode()[0])
    assert found == void
    assert type(found.error) is DeadlineError
    assert str(found.error) == str(error)
    assert found.error.to_record() == error.to_record()


def test_run_info() -> None:
    info = RunInfo(1, "20300102-run.a_b", "2030-01-02")
    assert RunInfo.decode(info.encode()[0]) == info
    with pytest.raises(FormatError, match="bad 'kind'"):
        Claim.decode(info.encode()[0])


def test_names() -> None:
    assert names.root_name(1200, 7, "5f0c") == "000000001200-e00000007-5f0c.json"
    assert names.attempt_name(1200, 7, "5f0c") == "000000001200-e00000007-5f0c"
    assert names.claim_name(7) == "00000007.json"
    assert names.shard_file(12) == "00000/000012.safetensors"
    assert names.shard_file(512, shared=True) == "00001/000512.r.safetensors"
    assert names.manifest_file(200_000) == "00390/200000.json"


@given(st.integers(0, 2**62), st.integers(1, 2**62), st.text("0123456789abcdef", min_size=1, max_size=64))
def test_names_parse_back_and_sort_by_step(step: int, epoch: int, nonce: str) -> None:
    assert names.parse_root_name(names.root_name(step, epoch, nonce)) == (step, epoch, nonce)
    assert names.parse_claim_name(names.claim_name(epoch)) == epoch


@pytest.mark.parametrize(
    "name",
    ["", ".nfs000012", "000000001200-e00000007-5f0c", "000000001200-e00000007-5f0c.json~", "1200-e7-5f0c.json",
     "0000000001200-e00000007-5f0c.json", "000000001200-e000000007-5f0c.json", "000000001200-e00000007-.json",
     ".000000001200-e00000007-5f0c.json.tmp", "000000001200-e00000007-../x.json",
     "\u066000000001200-e00000007-5f0c.json",
     "00000007.json\n", "0000007.json", "000000007.json", "00000000.json"],
)  # fmt: skip
def test_other_names_are_skipped(name: str) -> None:
    assert names.parse_root_name(name) is None
    assert names.parse_claim_name(name) is None
