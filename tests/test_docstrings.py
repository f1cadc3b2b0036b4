"""A method that overrides another has no docstring unless it adds something: it inherits the other's."""

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from test_architecture import Module, modules

POINTER = re.compile(r"See (:\w+:`[^`]+`|``[^`]+``|above|the base)(, as with all methods here|, also for shapes)?\.?")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _methods(one: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Names of methods, and docstrings of those that have one."""
    for node in one.body:
        if isinstance(node, Function) and (text := ast.get_docstring(node)) is not None:
            yield node.name, text


def idle(sources: Iterable[Module]) -> list[str]:
    """Methods whose docstring only points elsewhere, or repeats that of a base class."""
    classes = {
        node.name: (module.name, node) for module in sources for node in module.nodes if isinstance(node, ast.ClassDef)
    }
    known = {name: dict(_methods(node)) for name, (_, node) in classes.items()}
    bases = {
        name: {ast.unparse(base).rpartition(".")[2] for base in node.bases} - {name}
        for name, (_, node) in classes.items()
    }
    return [
        f"{module}.{name}.{method}"
        for name, (module, _) in classes.items()
        for method, text in known[name].items()
        if POINTER.fullmatch(text) or text in (known.get(base, {}).get(method) for base in bases[name])
    ]


def test_an_override_inherits_its_docstring() -> None:
    assert idle(modules()) == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("See :meth:`Base.go`.", True),
        ("See :class:`~uneven.Callback`", True),
        ("Go.", True),
        ("Go, and stop.", False),
        ("See :meth:`Base.go`; never waits.", False),
        ("See that all go.", False),
    ],
)
def test_an_idle_docstring_is_seen(text: str, seen: bool) -> None:
    base = Module("one", 'class Base:\n    def go(self):\n        """Go."""')
    override = Module("two", f'class Car(one.Base):\n    def go(self):\n        """{text}"""')
    assert idle([base, override]) == (["two.Car.go"] if seen else [])
