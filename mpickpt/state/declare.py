"""Declarations: what owners hold and with which contract and options, merged up the tree into one union.

Each owner makes its own; a parent merges its children's into its own, so that the size follows the distinct regions
and never the owners. Of who declares a region only three numbers travel: the first role, how many, and the sum of
their weights. Merging is a union with minima and sums: in any grouping it gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mpickpt import canonical, digest
from mpickpt.state import names
from mpickpt.state.contract import Contract, checked, plain
from mpickpt.state.coverage import MASK, weight
from mpickpt.state.disagree import Differences
from mpickpt.state.holders import (
    MAX_ROLE,
    Holder,
    Run,
    each_holder,
    extend,
    malformed,
    number,
    read_runs,
    sequence,
    unite_runs,
)
from mpickpt.state.region import Region, Schema

if TYPE_CHECKING:
    from mpickpt.state.capture import Capture

MODES: Final = {"array": ("boxes", "replicated"), "value": ("replicated",), "per_owner": ("per_owner",)}
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
        self._entries: dict[str, Entry] | None = dict(entries)
        self.containers: dict[str, str] = dict(containers)
        self.contract: dict[str, Any] = dict(contract)
        self.options: dict[str, Any] = dict(options)
        self.first = first
        self._container_roles = dict.fromkeys(containers, first) if container_roles is None else dict(container_roles)
        self._schema: Schema | None = None
        self._bytes: bytes | None = None
        self._body_bytes: bytes | None = None
        self._runs: list[Run] | None = None
        self._like: Declarations | None = None

    @classmethod
    def _of_same(
        cls,
        like: Declarations,
        runs: list[Run],
        containers: Mapping[str, str],
        contract: Mapping[str, Any],
        options: Mapping[str, Any],
        first: int,
        container_roles: Mapping[str, int],
    ) -> Declarations:
        """Make declarations of the same regions, held in the same way, by other owners; entries are made when asked."""
        made = cls({}, containers, contract, options, first, container_roles)
        made._entries, made._runs, made._like = None, runs, like
        made._schema, made._body_bytes = like.schema, like._body()
        return made

    @property
    def entries(self) -> dict[str, Entry]:
        """By region name. Not to be changed."""
        if self._entries is None:
            assert self._like is not None
            holders = each_holder(self._holders())
            held = map(self._like.entries.__getitem__, _names(self.schema))
            self._entries = {
                one.region.name: Entry(one.region, one.mode, one.copies, *holder)
                for one, holder in zip(held, holders, strict=True)
            }
        return self._entries

    def _holders(self) -> list[Run]:
        """Give who holds the regions, in the schema's order: mostly the same owners hold many in a row."""
        if self._runs is None:
            self._runs = []
            for name in _names(self.schema):
                extend(self._runs, self.entries[name].held_as(), 1)
        return self._runs

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
        wanted = plain(options, "options")
        if last is not None and last._declares(capture, role, terms, wanted):
            return last
        own = weight(role)
        entries = {}
        for holding in capture.holdings:
            region = holding.region
            copies = holding.copy[1] if holding.mode == "boxes" else 1
            entries[region.name] = Entry(region, holding.mode, copies, role, 1, own)
        made = cls(entries, capture.containers, terms, wanted, role)
        made._runs = [((role, 1, own), len(entries))] if entries else []
        return made

    def _declares(self, capture: Capture, role: int, contract: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        """Tell whether `of` would give just these."""
        known = self.entries
        if self.first != role or self.containers != capture.containers or len(known) != len(capture.holdings):
            return False
        for holding in capture.holdings:
            entry = known.get(holding.region.name)
            if entry is None or entry.mode != holding.mode or not _alike(entry.region, holding.region):
                return False
            if holding.mode == "boxes" and entry.copies != holding.copy[1]:
                return False
        # 1 == True in Python, but not in JSON
        return canonical.dumps([self.contract, self.options]) == canonical.dumps([contract, options])

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
        differences = Differences()
        ordered = sorted(others, key=lambda other: other.first)
        same = all(other._body() == self._body() for other in ordered)
        entries: dict[str, Entry] = {}
        if not same:
            entries = {name: Entry(e.region, e.mode, e.copies, *e.held_as()) for name, e in self.entries.items()}
            for other in ordered:
                _unite_entries(entries, other.entries, differences)
            if len(entries) > len(self.entries):
                differences.nested(entries)
        containers, roles = dict(self.containers), dict(self._container_roles)
        for other in ordered:
            for path, kind in other.containers.items():
                role = other._container_roles[path]
                if containers.setdefault(path, kind) != kind:
                    differences.note(f"container {path}", "", containers[path], roles[path], kind, role, path)
                roles[path] = min(roles.get(path, role), role)
        for path, kind in containers.items():
            # an object whose state_dict() gives one array is a container and a region in one
            if path in (self.schema if same else entries) and not kind.startswith("object"):
                outer = (self.entries if same else entries)[path]
                held = f"a {outer.mode} region"
                differences.note(f"region {path}", "", held, outer.first, f"a {kind}", roles[path], path)
        for other in ordered:
            differences.terms("contract", self.contract, self.first, other.contract, other.first)
            differences.terms("options", self.options, self.first, other.options, other.first)
        differences.refuse()
        first = min([self.first, *(other.first for other in ordered)])
        if same:
            runs = self._holders()
            for other in ordered:
                runs = unite_runs(runs, other._holders())
            return Declarations._of_same(self, runs, containers, self.contract, self.options, first, roles)
        union = Declarations(entries, containers, self.contract, self.options, first, roles)
        if len(entries) == len(self.entries):
            union._schema, union._body_bytes = self.schema, self._body_bytes
        return union

    def named(self) -> set[int]:
        """Give the roles that a disagreement about these declarations may name: the first that declares each part."""
        return {self.first, *(holder[0] for holder, _ in self._holders()), *self._container_roles.values()}

    def _body(self) -> bytes:
        """Write what does not depend on who declares it; kept, since owners mostly declare the same."""
        if self._body_bytes is None:
            texts: dict[tuple[str, int], bytes] = {}  # of tens of thousands of regions most are held alike
            held = []
            for entry in map(self.entries.__getitem__, _names(self.schema)):
                like = entry.mode, entry.copies
                if like not in texts:
                    texts[like] = canonical.dumps(like)
                held.append(texts[like])
            self._body_bytes = b'{"held":[' + b",".join(held) + b'],"schema":' + self.schema.text() + b"}"
        return self._body_bytes

    def to_bytes(self) -> bytes:
        """Write the declarations as two lines of canonical JSON, the second being the regions.

        Equal declarations give equal bytes, in whatever order they were merged.
        """
        if self._bytes is None:
            holders: dict[Holder, int] = {}
            runs = [[holders.setdefault(holder, len(holders)), length] for holder, length in self._holders()]
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
        first = number(head["first"], "first", 0, MAX_ROLE)
        containers, roles = {}, {}
        for path, pair in _mapping(head["containers"], "containers").items():
            kind, role = sequence(pair, "containers", 2)
            if not isinstance(kind, str):
                raise malformed("containers", "a type's name", kind)
            names.split(path)
            containers[path], roles[path] = kind, number(role, "containers", 0, MAX_ROLE)
        if checked(head["contract"], "contract"):  # calls that compare no contract have an empty one
            Contract.from_json(head["contract"])
        options = checked(head["options"], "options")
        if like is not None and like._body() == body:
            runs = read_runs(head["runs"], head["holders"], len(like.schema))
            read = cls._of_same(like, runs, containers, head["contract"], options, first, roles)
        else:
            schema, held = _read_body(body)
            runs = read_runs(head["runs"], head["holders"], len(schema))
            entries: dict[str, Entry] = {}
            for region, (mode, copies), holder in zip(schema, held, each_holder(runs), strict=True):
                entries[region.name] = Entry(region, mode, copies, *holder)
            read = cls(entries, containers, head["contract"], options, first, roles)
            read._schema, read._body_bytes, read._runs = schema, body, runs
        if read.to_bytes() != data:
            raise malformed("the first line", "the form that it is written in", "another order of holders or runs")
        return read

    def digest(self, algorithm: str = "blake3") -> str:
        """Give the digest of the declarations, as ``ALGORITHM:HEX``: equal if and only if they are."""
        return digest.name(algorithm, digest.digest(algorithm, "declarations", self.to_bytes()))


def _alike(one: Region, two: Region) -> bool:
    """Tell whether two regions are equal; mostly they are one and the same, and dataclasses do not look for that."""
    return one is two or one == two


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise malformed(where, "an object", value)
    return value


def _keys(value: object, keys: str) -> dict[str, Any]:
    if not isinstance(value, dict) or sorted(value) != keys.split():
        raise malformed("a line", f"an object with {keys}", value)
    return value


def _unite_entries(entries: dict[str, Entry], others: Mapping[str, Entry], differences: Differences) -> None:
    """Take what others declare into `entries`."""
    for name, theirs in others.items():
        mine = entries.get(name)
        if mine is None:
            entries[name] = Entry(theirs.region, theirs.mode, theirs.copies, *theirs.held_as())
        elif mine.mode == theirs.mode and mine.copies == theirs.copies and _alike(mine.region, theirs.region):
            mine.first = min(mine.first, theirs.first)
            mine.count += theirs.count
            mine.weights = (mine.weights + theirs.weights) & MASK
        else:
            differences.entries(mine, theirs)


def _read_body(body: bytes) -> tuple[Schema, list[tuple[str, int]]]:
    plain_body = _keys(canonical.loads(body, what="declarations"), "held schema")
    schema = Schema.from_json(plain_body["schema"])
    held: list[tuple[str, int]] = []
    for region, row in zip(schema, sequence(plain_body["held"], "held", len(schema)), strict=True):
        mode, copies = sequence(row, "held", 2)
        if mode not in MODES[region.kind]:
            raise malformed("held", " or ".join(MODES[region.kind]), mode)
        held.append((mode, number(copies, "copies", 1, MAX_COPIES if mode == "boxes" else 2)))
    return schema, held


def _names(schema: Schema) -> Iterator[str]:
    return (region.name for region in schema)
