"""Limits of the engine in ``run/`` that only fall; each question is seen to count a bad example."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

from test_architecture import KNOWN, LIBRARY, Module, dotted, imports, target

ENGINE = re.compile(
    r"\w*Carrier|\w*Gradients|\w+Sync|\w*Aggregator|\w*Peers|\w+Members|\w+Lines|\w*Line|\w*Recovery|"
    r"RecoveredVectors|PeerExchanges|Exchanges|\w*Group|\w*Communicator|ElasticRun"
)
"""Carriers, exchanges of gradients, syncs, elastic runs, lines and communicators."""

LIMITS = {
    "rooms of run/ in a circle of imports": 0,
    "isinstance on a class of the engine": 0,
    "elastic is None": 1,
    "fields of the largest class in run/": 21,
    "fields of Exchange": 12,
    "lines of step/loop.py": 190,
    "questions for None in step/loop.py": 6,
    "rooms that step/loop.py imports from": 4,
}
"""The present number of each; none may grow."""

RUN = tuple(one for one in LIBRARY if one.name.startswith("uneven.run."))


def room(name: str) -> str:
    """The folder below ``run`` that a module is in; "" outside of ``run`` and for its own files."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["uneven", "run"] and len(parts) > 3 else ""


def rooms_of(module: Module) -> set[str]:
    return {room(target(name, KNOWN)) for _, name in imports(module)} - {"", room(module.name)}


def circle(modules: Iterable[Module]) -> int:
    """How many rooms are in the largest circle of imports; 0 without one."""
    needs: dict[str, set[str]] = defaultdict(set)
    for one in modules:
        if room(one.name):
            needs[room(one.name)] |= rooms_of(one)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [*needs[start]]
        while waiting:
            if (name := waiting.pop()) not in seen:
                seen.add(name)
                waiting += needs.get(name, ())
        return seen

    far = {name: reached(name) for name in [*needs]}
    return max(sum(name in far.get(other, ()) for other in far[name]) if name in far[name] else 0 for name in far)


def asks_of_the_engine(module: Module) -> set[int]:
    """Lines that ask whether an object is of some class of the engine."""
    return {
        node.lineno
        for node in module.nodes
        if isinstance(node, ast.Call) and dotted(node.func) in ("isinstance", "issubclass")
        for one in ast.walk(node.args[1])
        if isinstance(one, ast.Name | ast.Attribute) and ENGINE.fullmatch(dotted(one).rpartition(".")[2])
    }


def asks_for_none(module: Module, of: str = r".*") -> set[int]:
    """Lines that ask whether something is None."""
    return {
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(one, ast.Is | ast.IsNot) for one in node.ops)
        and any(isinstance(one, ast.Constant) and one.value is None for one in node.comparators)
        and re.fullmatch(of, ast.unparse(node.left))
    }


def fields(cls: ast.ClassDef) -> set[str]:
    """What a class keeps: annotated names of its body, and what ``__init__`` sets."""
    kept = {one.target.id for one in cls.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    for method in cls.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            kept |= {
                node.attr
                for node in ast.walk(method)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            }
    return kept


def classes(modules: Iterable[Module]) -> Iterator[ast.ClassDef]:
    return (node for one in modules for node in one.nodes if isinstance(node, ast.ClassDef))


def counted() -> dict[str, int]:
    (loop,) = (one for one in RUN if one.name == "uneven.run.step.loop")
    exchange = next(one for one in classes(LIBRARY) if one.name == "Exchange")
    asking = (
        one for one in LIBRARY if one.name != "uneven.run.step.build" and not one.name.startswith("uneven.testing")
    )
    return {
        "rooms of run/ in a circle of imports": circle(RUN),
        "isinstance on a class of the engine": sum(len(asks_of_the_engine(one)) for one in asking),
        "elastic is None": sum(len(asks_for_none(one, r"(.*\.)?_?elastic")) for one in RUN),
        "fields of the largest class in run/": max(len(fields(one)) for one in classes(RUN)),
        "fields of Exchange": len(fields(exchange)),
        "lines of step/loop.py": loop.text.count("\n"),
        "questions for None in step/loop.py": len(asks_for_none(loop)),
        "rooms that step/loop.py imports from": len(rooms_of(loop)),
    }


def test_no_figure_of_the_engine_grows() -> None:
    found = counted()
    assert {name: number for name, number in found.items() if number > LIMITS[name]} == {}
    lower = {name: number for name, number in found.items() if number < LIMITS[name]}
    assert lower == {}, "lower these limits of tests/test_engine.py"


def test_a_circle_of_rooms_is_seen() -> None:
    step = Module("uneven.run.step.bad", "from uneven.run.lines.line import Line")
    lines = Module("uneven.run.lines.bad", "import uneven.run.step.loop")
    apart = Module("uneven.run.reports.good", "import uneven.run.step.loop")
    assert circle([step, lines, apart]) == 2
    assert circle([step, apart]) == 0


@pytest.mark.parametrize("kind", ["ReplicaSync", "peers.PeerAggregator", "int | BucketGradients", "(str, ElasticRun)"])
def test_a_question_for_a_class_of_the_engine_is_seen(kind: str) -> None:
    assert asks_of_the_engine(Module("uneven.run.bad", f"isinstance(one, {kind})")) == {1}
    assert asks_of_the_engine(Module("uneven.run.good", "isinstance(one, Tensor)")) == set()


def test_a_question_for_none_is_seen() -> None:
    bad = Module("uneven.run.bad", "a.elastic is None\nelastic is not None\nb is None\nb == c")
    assert asks_for_none(bad) == {1, 2, 3}
    assert asks_for_none(bad, r"(.*\.)?_?elastic") == {1, 2}


def test_fields_are_counted() -> None:
    text = (
        "class A:\n    a: int\n    b: int = 0\n    def __init__(self):\n        self.c = self.d = 0\n        one.e = 0"
    )
    (cls,) = classes([Module("uneven.run.bad", text)])
    assert fields(cls) == {"a", "b", "c", "d"}
