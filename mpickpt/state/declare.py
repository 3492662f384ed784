"""Declarations: what owners hold and with which contract and options, merged up the tree into one union.

Each owner makes its own; a parent merges its children's into its own, so that the size follows the distinct regions
and never the owners. Of who declares a region only three numbers travel: the first role, how many, and the sum of
their weights. Merging is a union with minima and sums: in any grouping it gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mpickpt import canonical, digest
from mpickpt.errors import FormatError
from mpickpt.state import names
from mpickpt.state.contract import Contract, checked, plain
from mpickpt.state.coverage import MASK, weight
from mpickpt.state.disagree import Differences
from mpickpt.state.region import Region, Schema

if TYPE_CHECKING:
    from mpickpt.state.capture import Capture

MODES: Final = {"array": ("boxes", "replicated"), "value": ("replicated",), "per_owner": ("per_owner",)}
MAX_ROLE: Final = 1 << 31
MAX_COPIES: Final = 1 << 20


@dataclass(slots=True)
class Entry:
    """One region as it is declared.

    Parameters
    ----------
    region : Region
        Name, dtype, shape, kind, rule.
    mode : {"boxes", "replicated", "per_owner"}
        How owners hold it.
    copies : int
        In how many copies its boxes are held; 1 for the other modes.
    first : int
        The first role that declares it.
    count : int
        How many owners declare it.
    weights : int
        The sum of their weights, modulo 2**256.
    """

    region: Region
    mode: str
    copies: int
    first: int
    count: int
    weights: int

    def held_as(self) -> tuple[int, int, int]:
        """Give first role, count and weights."""
        return self.first, self.count, self.weights


class Declarations:
    """What one owner, or all owners of a subtree, declare. Not to be changed once made.

    Parameters
    ----------
    entries : mapping of str to Entry
        By region name.
    containers : mapping of str to str
        Types of containers other than dict, by escaped path.
    contract, options : mapping
        Canonical JSON data; all owners have the same.
    first : int
        The lowest role that is in it.
    container_roles : mapping of str to int, optional
        The lowest role that has each container, `first` by default.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        containers: Mapping[str, str],
        contract: Mapping[str, Any],
        options: Mapping[str, Any],
        first: int,
        container_roles: Mapping[str, int] | None = None,
    ) -> None:
        self.entries: dict[str, Entry] = dict(entries)
        self.containers: dict[str, str] = dict(containers)
        self.contract: dict[str, Any] = dict(contract)
        self.options: dict[str, Any] = dict(options)
        self.first = first
        self._container_roles = dict.fromkeys(containers, first) if container_roles is None else dict(container_roles)
        self._schema: Schema | None = None
        self._bytes: bytes | None = None
        self._body_bytes: bytes | None = None

    @classmethod
    def of(
        cls,
        capture: Capture,
        role: int,
        contract: Contract | Mapping[str, Any],
        options: Mapping[str, Any],
        last: Declarations | None = None,
    ) -> Declarations:
        """Declare what one owner holds.

        Parameters
        ----------
        capture : Capture
            What it holds.
        role : int
            Its role.
        contract : Contract or mapping
            The contract, or what its `Contract.to_json` gave.
        options : mapping
            Options that must be the same on all owners; JSON-able.
        last : Declarations, optional
            What it declared before: given back itself, with its digest, where nothing has changed.

        Raises
        ------
        StateError
            If an option is not JSON-able.
        """
        terms = contract.to_json() if isinstance(contract, Contract) else contract
        own = weight(role)
        entries = {}
        for holding in capture.holdings:
            region = holding.region
            copies = holding.copy[1] if holding.mode == "boxes" else 1
            entries[region.name] = Entry(region, holding.mode, copies, role, 1, own)
        found = cls(entries, capture.containers, terms, plain(options, "options"), role)
        return last if last is not None and found._same(last) else found

    def _same(self, other: Declarations) -> bool:
        if self.first != other.first or self.containers != other.containers or self.entries != other.entries:
            return False
        # 1 == True in Python, but not in JSON
        return canonical.dumps([self.contract, self.options]) == canonical.dumps([other.contract, other.options])

    @property
    def schema(self) -> Schema:
        """The regions, ordered by name."""
        if self._schema is None:
            self._schema = Schema(entry.region for entry in self.entries.values())
        return self._schema

    def merge(self, others: Iterable[Declarations]) -> Declarations:
        """Unite these declarations with those of other owners, none of whom is in both.

        Returns
        -------
        Declarations
            The union; its cost is linear in what comes in.

        Raises
        ------
        DisagreementError
            If owners declare one name with different shapes, dtypes, kinds, rules, modes or copies, one path as
            different containers, or have different contracts or options; it lists at most 20 differences with roles.
        """
        entries = {name: Entry(e.region, e.mode, e.copies, *e.held_as()) for name, e in self.entries.items()}
        containers, roles = dict(self.containers), dict(self._container_roles)
        first = self.first
        differences = Differences()
        ordered = sorted(others, key=lambda other: other.first)
        for other in ordered:
            for name, theirs in other.entries.items():
                mine = entries.get(name)
                if mine is None:
                    entries[name] = Entry(theirs.region, theirs.mode, theirs.copies, *theirs.held_as())
                elif mine.mode == theirs.mode and mine.copies == theirs.copies and mine.region == theirs.region:
                    mine.first = min(mine.first, theirs.first)
                    mine.count += theirs.count
                    mine.weights = (mine.weights + theirs.weights) & MASK
                else:
                    differences.entries(mine, theirs)
            for path, kind in other.containers.items():
                role = other._container_roles[path]
                if containers.setdefault(path, kind) != kind:
                    differences.note(f"container {path}", "", containers[path], roles[path], kind, role, path)
                roles[path] = min(roles.get(path, role), role)
            first = min(first, other.first)
        if len(entries) > len(self.entries):
            differences.nested(entries)
        for path, kind in containers.items():
            # an object whose state_dict() gives one array is a container and a region in one
            if path in entries and not kind.startswith("object"):
                outer = entries[path]
                held = f"a {outer.mode} region"
                differences.note(f"region {path}", "", held, outer.first, f"a {kind}", roles[path], path)
        for other in ordered:
            differences.terms("contract", self.contract, self.first, other.contract, other.first)
            differences.terms("options", self.options, self.first, other.options, other.first)
        differences.refuse()
        union = Declarations(entries, containers, self.contract, self.options, first, roles)
        if len(entries) == len(self.entries):
            union._schema, union._body_bytes = self.schema, self._body_bytes
        return union

    def _body(self) -> bytes:
        """Write what does not depend on who declares it; kept, since owners mostly declare the same."""
        if self._body_bytes is None:
            held = [[entry.mode, entry.copies] for entry in map(self.entries.__getitem__, _names(self.schema))]
            self._body_bytes = canonical.dumps({"held": held, "schema": self.schema.to_json()})
        return self._body_bytes

    def to_bytes(self) -> bytes:
        """Write the declarations as two lines of canonical JSON, the second being the regions.

        Equal declarations give equal bytes, in whatever order they were merged.
        """
        if self._bytes is None:
            holders: dict[tuple[int, int, int], int] = {}
            runs: list[list[int]] = []  # [holder, how many regions in a row]
            for name in _names(self.schema):
                holder = holders.setdefault(self.entries[name].held_as(), len(holders))
                if runs and runs[-1][0] == holder:
                    runs[-1][1] += 1
                else:
                    runs.append([holder, 1])
            head = {
                "containers": {path: [kind, self._container_roles[path]] for path, kind in self.containers.items()},
                "contract": self.contract,
                "first": self.first,
                "holders": [[first, count, f"{weights:064x}"] for first, count, weights in holders],
                "options": self.options,
                "runs": runs,
            }
            self._bytes = canonical.dumps(head) + b"\n" + self._body()
        return self._bytes

    @classmethod
    def from_bytes(cls, data: bytes, like: Declarations | None = None) -> Declarations:
        """Read what `to_bytes` wrote.

        Parameters
        ----------
        data : bytes
            The two lines.
        like : Declarations, optional
            Known ones: where the regions are the same, byte for byte, they are taken from there and not parsed again.

        Raises
        ------
        FormatError
            If `data` is anything else.
        """
        line, _, body = bytes(data).partition(b"\n")
        head = _keys(canonical.loads(line, what="declarations"), "containers contract first holders options runs")
        first = _number(head["first"], "first", 0, MAX_ROLE)
        containers, roles = {}, {}
        for path, pair in _mapping(head["containers"], "containers").items():
            kind, role = _sequence(pair, "containers", 2)
            if not isinstance(kind, str):
                raise _malformed("containers", "a type's name", kind)
            names.split(path)
            containers[path], roles[path] = kind, _number(role, "containers", 0, MAX_ROLE)
        if checked(head["contract"], "contract"):  # calls that compare no contract have an empty one
            Contract.from_json(head["contract"])
        options = checked(head["options"], "options")
        if like is not None and like._body() == body:
            schema = like.schema
            held = [(like.entries[name].mode, like.entries[name].copies) for name in _names(schema)]
        else:
            schema, held = _read_body(body)
        entries: dict[str, Entry] = {}
        holders = _holders(head["runs"], head["holders"], len(schema))
        for region, (mode, copies), holder in zip(schema, held, holders, strict=True):
            entries[region.name] = Entry(region, mode, copies, *holder)
        read = cls(entries, containers, head["contract"], options, first, roles)
        read._schema, read._body_bytes = schema, body
        if read.to_bytes() != data:
            raise _malformed("the first line", "the form that it is written in", "another order of holders or runs")
        return read

    def digest(self, algorithm: str = "blake3") -> str:
        """Give the digest of the declarations, as ``ALGORITHM:HEX``: equal if and only if they are."""
        return digest.name(algorithm, digest.digest(algorithm, "declarations", self.to_bytes()))


def _malformed(where: str, expected: str, found: object) -> FormatError:
    return FormatError(f"malformed declarations: {where}", expected=expected, found=repr(found)[:100])


def _number(value: object, where: str, start: int, stop: int) -> int:
    if type(value) is not int or not start <= value < stop:
        raise _malformed(where, f"a number in [{start}, {stop})", value)
    return value


def _sequence(value: object, where: str, length: int | None = None) -> Sequence[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise _malformed(where, "a list" + ("" if length is None else f" of {length}"), value)
    return value


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(where, "an object", value)
    return value


def _keys(value: object, keys: str) -> dict[str, Any]:
    if not isinstance(value, dict) or sorted(value) != keys.split():
        raise _malformed("a line", f"an object with {keys}", value)
    return value


def _holder(value: object) -> tuple[int, int, int]:
    first, count, weights = _sequence(value, "holders", 3)
    if not isinstance(weights, str) or len(weights) != 64 or set(weights) - set("0123456789abcdef"):
        raise _malformed("holders", "64 hexadecimal digits", weights)
    return _number(first, "holders", 0, MAX_ROLE), _number(count, "holders", 1, MAX_ROLE), int(weights, 16)


def _holders(runs: object, holders: object, regions: int) -> list[tuple[int, int, int]]:
    """Give the holder of each region."""
    known = [_holder(one) for one in _sequence(holders, "holders")]
    found: list[tuple[int, int, int]] = []
    for run in _sequence(runs, "runs"):
        index, length = _sequence(run, "runs", 2)
        index = _number(index, "runs", 0, len(known))
        found += [known[index]] * _number(length, "runs", 1, regions - len(found) + 1)
    if len(found) != regions:
        raise _malformed("runs", f"{regions} regions", len(found))
    return found


def _read_body(body: bytes) -> tuple[Schema, list[tuple[str, int]]]:
    plain_body = _keys(canonical.loads(body, what="declarations"), "held schema")
    schema = Schema.from_json(plain_body["schema"])
    held: list[tuple[str, int]] = []
    for region, row in zip(schema, _sequence(plain_body["held"], "held", len(schema)), strict=True):
        mode, copies = _sequence(row, "held", 2)
        if mode not in MODES[region.kind]:
            raise _malformed("held", " or ".join(MODES[region.kind]), mode)
        held.append((mode, _number(copies, "copies", 1, MAX_COPIES if mode == "boxes" else 2)))
    return schema, held


def _names(schema: Schema) -> Iterator[str]:
    return (region.name for region in schema)
