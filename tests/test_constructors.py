"""Constructors set one field a line, so that no file is short by being packed; seen to fail on a bad example."""

import ast

import pytest

from test_architecture import Module, modules


def packed_fields(module: Module, most: int = 2) -> list[str]:
    """Find the lines of constructors that set more than ``most`` fields from a tuple.

    One line for each field shows which value it gets.
    """
    constructors = [
        node
        for node in module.nodes
        if isinstance(node, ast.FunctionDef) and node.name in ("__init__", "__post_init__")
    ]
    return [
        f"{module.name}:{node.lineno}"
        for constructor in constructors
        for node in ast.walk(constructor)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for left in node.targets
        if isinstance(left, ast.Tuple) and sum(isinstance(one, ast.Attribute) for one in left.elts) > most
    ]


def test_constructors_set_one_field_a_line() -> None:
    assert [wrong for module in modules() for wrong in packed_fields(module)] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("self.a, self.b, self.c = a, b, c", True),
        ("if a:\n            self.a, self.b, self.c = (a, b, c)", True),
        ("self.a, self.b = a, b", False),
        ("self.a, self.b, self.c = split(a)", False),
        ("left, middle, right = a, b, c", False),
    ],
)
def test_packed_fields_are_seen(line: str, wrong: bool) -> None:
    for name in ("__init__", "__post_init__"):
        text = f"class It:\n    def {name}(self, a, b, c):\n        {line}"
        assert bool(packed_fields(Module("uneven.run.bad", text))) is wrong
