"""The reader of cluster descriptions in TOML. Pure: :mod:`uneven.cluster.files` reads the files.

The keys of a table are the attributes of its class in :mod:`uneven.cluster.pure.describe.spec`, as listed in "Describe
a cluster".
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, fields
from itertools import product
from typing import Any, TypeVar

from uneven.cluster.pure.describe.quantities import ReadTrace, comings_and_goings, cost, trace
from uneven.cluster.pure.describe.spec import (
    ClusterSpec,
    Do,
    Event,
    Node,
    Preconditioning,
    SiteLink,
    TableWork,
    Workload,
)
from uneven.cluster.pure.describe.trace import Trace
from uneven.cluster.pure.describe.write import to_toml as to_toml
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.cost import Cost
from uneven.policy.core.tables import Table, convert, document, hints, items, known, located, required, table, text

MOST_NODES = 100_000  # Ten times the number of workers for which decisions were measured. [our choice]

_OF_SEVERAL = ("count", "gpus", "present")  # keys of a table of nodes that are not of one node

Special = dict[Any, Callable[[Any], Any]]
_Part = TypeVar("_Part", Node, Event, SiteLink, Workload, Preconditioning, TableWork)


def from_toml(text: str | bytes, source: str, read_trace: ReadTrace) -> ClusterSpec:
    """Return the cluster that a TOML document describes; ``source`` is its name, for messages.

    Raises:
        ConfigError: a mistake, with source, table, key and value; for invalid TOML, the line.
        UnknownNameError: an unknown key or name, with the nearest known one.
    """
    table = document(text, source)
    with located(source):
        return from_table(table, read_trace)


def from_table(document: Table, read_trace: ReadTrace) -> ClusterSpec:
    """Return the cluster in a plain mapping, like :func:`from_toml` but without the source in messages."""
    known(document, (*hints(ClusterSpec), "defaults"))
    special = _special(read_trace)
    top = {}
    optional = ("about", "assumptions", "currency", "switch_bit_per_s")
    for key in ("name", *(key for key in optional if key in document)):
        with located(key):
            top[key] = convert(hints(ClusterSpec)[key], required(document, key), special)
    nodes, events = _nodes(document, read_trace)
    events += [_part(Event, one, where, special) for one, where in _tables(document, "events")]
    if "preconditioner" in document:
        top["preconditioner"] = _part(Preconditioning, _table(document, "preconditioner"), "[preconditioner]", special)
    return ClusterSpec(
        **top,
        workload=_part(Workload, _table(document, "workload"), "[workload]", special),
        tables=_part(TableWork, _table(document, "tables"), "[tables]", special),
        nodes=tuple(nodes),
        events=tuple(events),
        links=tuple(_part(SiteLink, one, where, special) for one, where in _tables(document, "links")),
    )


def preconditioner_from_toml(text: str | bytes, source: str) -> Preconditioning:
    """Return the table ``[preconditioner]`` of a document without others; errors as for :func:`from_toml`."""
    table = document(text, source)
    with located(source):
        known(table, ("preconditioner",))
        required(table, "preconditioner")
        return _part(Preconditioning, _table(table, "preconditioner"), "[preconditioner]", {})


def _table(document: Table, key: str) -> Table:
    with located(key):
        return table(document.get(key, {}))


def _tables(document: Table, key: str) -> Iterator[tuple[Table, str]]:
    value = document.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ConfigError(f"{key} must be an array of tables: begin each one with [[{key}]]")
    for place, one in enumerate(value, start=1):
        yield one, f"[[{key}]] number {place}"


def _nodes(document: Table, read_trace: ReadTrace) -> tuple[list[Node], list[Event]]:
    """Return the nodes, and the joins and leaves from their key ``present``, in order of time."""
    nodes: list[Node] = []
    events: list[Event] = []
    defaults = _table(document, "defaults")
    with located("[defaults]"):
        known(defaults, [key for key in hints(Node) if key != "name"])
    for own, place in _tables(document, "nodes"):
        where = f"[[nodes]] {own['name']!r}" if isinstance(own.get("name"), str) else place
        with located(where):
            known(own, [*hints(Node), *_OF_SEVERAL])
            name = text(required(own, "name"))
            count, gpus = (convert(int, own.get(key, 1)) for key in ("count", "gpus"))
            for key, several in (("count", count), ("gpus", gpus)):
                if not 1 <= several <= MOST_NODES - len(nodes):
                    raise ConfigError(f"{key} = {several}: give 1 to {MOST_NODES:,}")
            if count * gpus > MOST_NODES - len(nodes):
                raise ConfigError(f"count · gpus = {count * gpus:,}: give at most {MOST_NODES:,} in all")
        # A key of the node overrides the same key of the defaults.
        values = {**defaults, **{key: value for key, value in own.items() if key not in _OF_SEVERAL}}
        for copy, gpu in product(range(count), range(gpus)):
            machine = f"{name}{copy}" if "count" in own else name
            values["name"] = f"{machine}-{gpu}" if "gpus" in own else machine
            if gpus > 1:
                values["card"] = machine
            node = _part(Node, values, where, _special(read_trace, copy, count), defaults.keys() - own)
            nodes.append(node)
            if "present" in own:
                with located(f"{where} present"):
                    events += comings_and_goings(node.name, trace(own["present"], read_trace, copy, count), copy)
    return nodes, sorted(events, key=lambda event: event.at_s or 0.0)


def _part(kind: type[_Part], values: Table, where: str, special: Special, inherited: Collection[str] = ()) -> _Part:
    """Return an object of ``kind``; the ``inherited`` keys come from the table of defaults."""
    with located(where):
        known(values, hints(kind))
    made = {}
    for key, value in values.items():
        with located(f"{'[defaults]' if key in inherited else where} {key}"):
            made[key] = convert(hints(kind)[key], value, special)
    with located(where):
        for one in fields(kind):
            if one.init and one.default is MISSING and one.default_factory is MISSING:
                required(made, one.name)
        return kind(**made)


def _special(read_trace: ReadTrace, copy: int = 0, copies: int = 1) -> Special:
    """Return the conversions of a table of nodes; ``copy`` is the number of this node among the ``copies``."""
    return {**_SPECIAL, Trace: lambda value: trace(value, read_trace, copy, copies)}


def _do(value: Any) -> Do:
    name = text(value)
    names = {one.value: one for one in Do}
    if name not in names:
        raise UnknownNameError("event", name, names)
    return names[name]


def _pair(value: Any) -> tuple[str, str]:
    pair = items(value, text)
    if len(pair) != 2:
        raise ConfigError(f'{value!r} names {len(pair)} sites; give two, as ["eu", "us"]')
    return pair[0], pair[1]


_SPECIAL: Special = {Cost: cost, Do: _do, tuple[str, str]: _pair}
