"""The writer of cluster descriptions as TOML text."""

import math
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

from uneven.cluster.pure.describe.spec import ClusterSpec, Event, Node, Preconditioning, SiteLink, TableWork, Workload
from uneven.cluster.pure.describe.trace import Measured, Saturating, Trace, steady
from uneven.errors import ConfigError
from uneven.policy.core.cost import Affine
from uneven.policy.core.tables import quoted


def to_toml(spec: ClusterSpec) -> str:
    """Return the TOML text of a cluster without default values, and with recorded series inline. Raises ConfigError for
    a cost of a kind that TOML cannot express."""
    top = [f"{key} = {_value(getattr(spec, key))}" for key in ("name", "about", "assumptions") if getattr(spec, key)]
    if spec.currency != "$":
        top.append(f"currency = {_value(spec.currency)}")
    if spec.switch_bit_per_s is not None:
        top.append(f"switch_bit_per_s = {_value(spec.switch_bit_per_s)}")
    parts = ["\n".join(top)]
    if spec.workload != Workload():
        parts.append(_part("[workload]", spec.workload))
    if spec.preconditioner is not None:
        parts.append(preconditioner_to_toml(spec.preconditioner))
    if spec.tables != TableWork():
        parts.append(_part("[tables]", spec.tables))
    parts += [_part("[[nodes]]", node) for node in spec.nodes]
    parts += [_part("[[links]]", link) for link in spec.links]
    parts += [_part("[[events]]", event) for event in spec.events]
    return "\n\n".join(parts) + "\n"


def preconditioner_to_toml(one: Preconditioning) -> str:
    """Return the ``[preconditioner]`` table."""
    return _part("[preconditioner]", one)


def _part(header: str, part: Node | Event | SiteLink | Workload | Preconditioning | TableWork) -> str:
    return "\n".join([header, *_lines(part)])


def _lines(part: Node | Event | SiteLink | Workload | Preconditioning | TableWork) -> Iterator[str]:
    for one in fields(part):
        value = getattr(part, one.name)
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if one.init and value != default:
            yield f"{one.name} = {_value(value)}"


def _value(value: Any) -> str:
    match value:
        case str():
            return quoted(value)
        case Enum():
            return quoted(value.value)
        case int() | float():
            return repr(value)
        case tuple() | list():
            return f"[{', '.join(_value(one) for one in value)}]"
        case Trace():
            return _trace(value)
        case Affine(overhead_s=overhead_s, per_sample_s=per_sample_s):
            return _table(kind="affine", overhead_s=overhead_s, per_sample_s=per_sample_s)
        case Saturating(floor_s=floor_s, overhead_s=overhead_s, per_sample_s=per_sample_s):
            return _table(kind="saturating", floor_s=floor_s, overhead_s=overhead_s, per_sample_s=per_sample_s)
        case Measured(samples=samples, seconds_each=seconds_each):
            return _table(kind="measured", points=list(zip(samples, seconds_each, strict=True)))
    raise ConfigError(f"{value!r} cannot be written as TOML: use an affine, saturating or measured cost")


def _trace(trace: Trace) -> str:
    if trace == steady(trace.values[0]):
        return repr(trace.values[0])
    rest: dict[str, Any] = {}
    if len(trace.values) > 1 or math.isfinite(trace.step_s):
        rest["step_s"] = trace.step_s
    if trace.speedup != 1.0:
        rest["speedup"] = trace.speedup
    if trace.source:
        rest["source"] = trace.source
    return _table(values=trace.values, **rest)


def _table(**values: Any) -> str:
    return f"{{ {', '.join(f'{key} = {_value(value)}' for key, value in values.items())} }}"
