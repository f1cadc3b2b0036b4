"""Writes the JSON Schemas of the files in TOML: ``python docs/schemas.py``. A test compares.

Keys, types and ranges come from the classes that the readers use; their meanings come from the tables in these pages.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from uneven.cluster.pure.describe.parse import MOST_NODES
from uneven.cluster.pure.describe.quantities import COSTS, INLINE_KEYS, RECORDED_KEYS
from uneven.cluster.pure.describe.spec import (
    ClusterSpec,
    Event,
    Node,
    Preconditioning,
    SiteLink,
    TableWork,
    Workload,
)
from uneven.cluster.pure.describe.trace import Trace
from uneven.fleet import ensemble_file
from uneven.fleet.ensemble import Metric
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Cost
from uneven.policy.core.plain import Range
from uneven.policy.core.registry import Registry
from uneven.policy.core.run_config import RunConfig
from uneven.policy.core.tables import hints
from uneven.policy.sync import policies
from uneven.search import search_file
from uneven.search.pure.schedulers import schedulers
from uneven.search.pure.searchers import searchers
from uneven.search.search_spec import SearchOptions

DOCS = Path(__file__).parent
FOLDER = DOCS.parent / "src" / "uneven" / "schemas"
Schema = dict[str, Any]

_NAMED: Schema = {"type": "string", "pattern": "^[^:]+:[^:]+$"}
_SPECIAL: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Trace: {"allOf": [{"$ref": "#/definitions/quantity"}]},
    Cost: {"allOf": [{"$ref": "#/definitions/cost"}]},
    ensemble_file.Named: _NAMED,
    ensemble_file.Made: _NAMED,
    Metric: {"enum": [*ensemble_file.METRICS]},
    search_file.Directories: {"type": ["string", "array"], "items": {"type": "string"}},
    int | str: {"type": ["integer", "string"]},
    Mapping[str, Any]: {"type": "object"},
}
_EXCLUSIVE = 2.0**52  # A bound below it that lies next to a whole number excludes that number.


def schema(hint: Any) -> Schema:
    """The schema of a type that :func:`uneven.policy.core.tables.convert` reads."""
    if hint in _SPECIAL:
        return dict(_SPECIAL[hint])
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return schema(inner[0]) | {key: one for note in inner[1:] if isinstance(note, Range) for key, one in ends(note)}
    if origin in (Union, UnionType):
        return schema(next(one for one in inner if one is not NoneType))
    if origin is Literal:
        return {"enum": [*inner]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [one.value for one in hint]}
    if origin is tuple and inner[-1] is not Ellipsis:
        return {"type": "array", "items": schema(inner[0]), "minItems": len(inner), "maxItems": len(inner)}
    if origin in (tuple, Sequence):
        return {"type": "array", "items": schema(inner[0])}
    raise TypeError(f"a file in TOML has no {hint}")


def ends(bound: Range) -> Iterable[tuple[str, float]]:
    """The bounds of a number, in the words of JSON Schema."""
    for way, end, beyond in (("inimum", bound.least, -math.inf), ("aximum", bound.most, math.inf)):
        near = math.nextafter(end, beyond)
        if abs(end) < _EXCLUSIVE and near.is_integer():
            yield f"exclusiveM{way}", int(near)
        else:
            yield f"m{way}", end


def table(
    keys: Mapping[str, Any], meanings: Mapping[str, str], required: Iterable[str] = (), **defaults: Any
) -> Schema:
    """A table with these keys, by their types, and no others."""
    each = {key: hint if isinstance(hint, dict) else schema(hint) for key, hint in keys.items()}
    for key in each.keys() & meanings.keys():
        each[key] = {"description": meanings[key], **each[key]}
    for key in each.keys() & defaults.keys():
        each[key]["default"] = defaults[key]
    must = {"required": [*required]} if required else {}
    return {"type": "object", "properties": each, **must, "additionalProperties": False}


def fields(kind: Any, meanings: Mapping[str, str], more: Mapping[str, Any] | None = None) -> Schema:
    """The table of a dataclass, with its defaults."""
    plain = {one.name: one.default for one in dataclasses.fields(kind) if type(one.default) in (str, int, float, bool)}
    defaults = {key: value for key, value in plain.items() if value != math.inf and value != ""}
    missing = dataclasses.MISSING
    required = [
        one.name for one in dataclasses.fields(kind) if one.init and one.default is one.default_factory is missing
    ]
    return table({**hints(kind), **(more or {})}, meanings, required, **defaults)


def meanings(page: str, title: str = "") -> dict[str, str]:
    """What the tables of a page, or of a section, write of each key in their last column."""
    text = (DOCS / page).read_text(encoding="utf-8")
    text = text.partition(f"\n## {title}")[2].partition("\n## ")[0] if title else text
    rows = re.findall(r"^\| (`[^|]*) \|(?:.*\|)? ([^|]+) \|$", text, flags=re.MULTILINE)
    rows = [(re.findall(r"`(\w+)`", keys), words.strip()) for keys, words in rows]
    return {key: re.sub(r"\[(.*?)\]\(.*?\)", r"\1", words) for keys, words in reversed(rows) for key in keys}


def names(registry: Registry) -> Schema:
    """A name, for completion, or a name with options."""
    return {"anyOf": [{"enum": [name for name, _ in registry.items()]}, {"type": "string"}]}


def settings() -> Schema:
    said = meanings("reference.md")
    run = fields(RunConfig, said, {"balance": names(balancers), "sync": names(policies)})
    return table({"run": run}, {})


def cluster() -> Schema:
    page = "clusters.md"
    quantity, nodes = meanings(page, "What changes over time"), meanings(page, "`[[nodes]]`")
    count = {"type": "integer", "minimum": 1, "maximum": MOST_NODES}
    node = fields(Node, nodes, {"count": count, "gpus": count, "present": Trace})
    every = {key: one for key, one in node["properties"].items() if key not in ("name", "count", "gpus", "present")}
    points = {"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}}
    costs = {**{kind: hints(curve) for kind, curve in COSTS.items()}, "measured": {"points": points}}
    parts = {"workload": Workload, "preconditioner": Preconditioning, "tables": TableWork}
    lists = {"events": Event, "links": SiteLink}
    keys = {
        **{key: hints(ClusterSpec)[key] for key in ("name", "about", "assumptions", "switch_bit_per_s")},
        **{key: fields(kind, meanings(page, f"`[{key}]`")) for key, kind in parts.items()},
        "defaults": table(every, {}),
        "nodes": {"type": "array", "minItems": 1, "items": node},
        **{
            key: {"type": "array", "items": fields(kind, meanings(page, f"`[[{key}]]`"))} for key, kind in lists.items()
        },
    }
    number = {"type": "number", "minimum": 0}
    return {
        **table(keys, meanings(page, "At the top"), ("name", "nodes")),
        "definitions": {
            "quantity": {
                "anyOf": [number, table(INLINE_KEYS, quantity, ["values"]), table(RECORDED_KEYS, quantity, ["file"])]
            },
            "cost": {
                "anyOf": [
                    number,
                    *(table({"kind": {"const": kind}, **own}, {}, ("kind", *own)) for kind, own in costs.items()),
                ]
            },
        },
    }


def ensemble() -> Schema:
    factory = {"type": "object", "properties": {"factory": _NAMED}, "required": ["factory"]}
    members = {"type": "object", "additionalProperties": {"anyOf": [_NAMED, factory]}}
    asked = table(ensemble_file.KEYS, {}, ["dataset"])
    return table({"ensemble": asked, "members": members}, {}, ["ensemble"])


def search() -> Schema:
    said = dict(re.findall(r"^ {8}(\w+): ((?:.|\n {12})*)", SearchOptions.__doc__ or "", flags=re.MULTILINE))
    said = {key: " ".join(words.split()) for key, words in said.items()}
    keys = {**search_file.KEYS, "scheduler": names(schedulers), "searcher": names(searchers)}
    domains = {
        kind: {"type": "array", "description": inspect.getdoc(make)} for kind, make in search_file.DOMAINS.items()
    }
    domain = {**table(domains, {}), "minProperties": 1, "maxProperties": 1}
    constant = {"type": ["string", "number", "boolean", "array"]}
    space = {"type": "object", "additionalProperties": {"anyOf": [constant, domain]}}
    return table({"search": table(keys, said, ("train", "metric")), "space": space}, {}, ["search"])


SCHEMAS = {"uneven": settings, "cluster": cluster, "ensemble": ensemble, "search": search}


def written(name: str) -> str:
    """The text of a schema."""
    top = {"$schema": "http://json-schema.org/draft-07/schema#", "title": f"{name}.toml of uneven"}
    return json.dumps({**top, **SCHEMAS[name]()}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for one in SCHEMAS:
        (FOLDER / f"{one}.schema.json").write_text(written(one), encoding="utf-8")
