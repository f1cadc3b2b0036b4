"""Public names: each object on a page of docs/api has a summary, arguments, errors and an example."""

import ast
import importlib
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar, TypeVarTuple
from unittest.mock import patch

import pytest

import uneven

PAGES = Path(__file__).parents[1] / "docs" / "api"
ENTRY = re.compile(r"^\.\. auto(class|function|module):: ([\w.]+)$(?:\n +:members:(.*))?", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLE = re.compile(r"::\n\s*\n((?: {2,}.*\n?|\s*\n)+)")


@cache
def public() -> dict[str, dict[str, dict[str, Any]]]:
    """The objects of each page with their parts, by name; without those of packages that are not installed."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for page in sorted(PAGES.glob("*.md")):
        names = found.setdefault(page.name, {})
        for kind, name, listed in ENTRY.findall(page.read_text()):
            try:
                with patch.dict(os.environ):  # Lightning sets a variable when it is imported
                    objects = members(name) if kind == "module" else {name: named(name)}
            except ModuleNotFoundError:
                continue
            names |= {key: dict(parts(key, one, re.findall(r"\w+", listed))) for key, one in objects.items()}
    return found


def members(name: str) -> dict[str, Any]:
    module = importlib.import_module(name)
    own = [key for key, one in vars(module).items() if key[0] != "_" and getattr(one, "__module__", "") == name]
    found = {f"{name}.{key}": getattr(module, key) for key in getattr(module, "__all__", own)}
    return {key: one for key, one in found.items() if not isinstance(one, TypeVar | TypeVarTuple)}


def named(name: str) -> Any:
    module, _, key = name.rpartition(".")
    return getattr(importlib.import_module(module), key)


def parts(name: str, one: Any, listed: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The object, and the public methods and properties of a class, or those that the page lists.

    Another package describes a method that overrides one of its methods without a docstring.
    """
    yield name, one
    if inspect.isclass(one) and one.__module__.startswith("uneven"):
        for key in listed or vars(one):
            member = inspect.getattr_static(one, key)
            found = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
            if key[0] != "_" and found and not described_elsewhere(one, key, member.__doc__):
                yield f"{name}.{key}", getattr(one, key)


def described_elsewhere(one: type, key: str, text: str | None) -> bool:
    """Whether another package's class has this method, and the same text or the only one; also one next to a mixin."""
    bases = {base for kind in (one, *one.__subclasses__()) for base in inspect.getmro(kind)}
    theirs = [vars(base)[key] for base in bases if key in vars(base) and not base.__module__.startswith("uneven")]
    return any(text in (None, method.__doc__) for method in theirs)


def summary(name: str, one: Any, _: str) -> bool:
    documented = inspect.isclass(one) or callable(one) or isinstance(one, property)
    return not documented or re.match(r"[A-Z`:]", inspect.getdoc(one) or "") is not None


VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def arguments(name: str, one: Any, _: str) -> bool:
    """Whether the docstrings name each argument, or a field has a comment or a docstring."""
    if isinstance(one, property) or not callable(one) or exempt(one):
        return True
    given = inspect.signature(one).parameters.values()
    names = [*(one.__members__ if is_enum(one) else (each.name for each in given if each.kind not in VARIABLE))]
    described = [one, *makers(one)] if inspect.isclass(one) else [one]
    text = "".join(inspect.getdoc(each) or "" for each in described)
    known = {*re.findall(r"\w+", text), *(fields(one) if inspect.isclass(one) else ())}
    return all(key in known for key in names if key != "self" and key[0] != "_")


def makers(one: type) -> Iterator[Any]:
    """The ``__init__`` of a class, and the class that it comes from."""
    yield one.__init__  # type: ignore[misc]
    yield next(kind for kind in inspect.getmro(one) if "__init__" in vars(kind))


def is_enum(one: Any) -> bool:
    return inspect.isclass(one) and issubclass(one, Enum)


def fields(one: type) -> Iterator[str]:
    """The names of fields with a comment ``#:``, or with a docstring below."""
    for kind in inspect.getmro(one):
        if kind.__module__.startswith("uneven"):
            text = inspect.getsource(kind)
            yield from re.findall(r"^ {4}(\w+)\b.*  #: ", text, re.MULTILINE)
            yield from re.findall(r"^ {4}#: .*\n {4}(\w+)\b", text, re.MULTILINE)
            yield from re.findall(r"^ {4}(\w+)\b.*\n {4}\"\"\"", text, re.MULTILINE)


def errors(name: str, one: Any, _: str) -> bool:
    """Whether the docstring says which errors the body raises."""
    body: Any = one.fget if isinstance(one, property) else one
    body = inspect.unwrap(body)
    if inspect.isclass(body):
        body = vars(body).get("__post_init__", vars(body).get("__init__"))
    if not inspect.isfunction(body) or body.__code__.co_filename[0] == "<" or not body.__module__.startswith("uneven"):
        return True
    text = (inspect.getdoc(one) or "") + (inspect.getdoc(body) or "")
    raised = {
        ast.unparse(node.exc.func).rpartition(".")[2]
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(body))))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    }
    return all(one in text for one in raised if one.endswith("Error") and one != "NotImplementedError")


def exempt(one: Any) -> bool:
    """Whether one is an exception, which needs no arguments and no example."""
    return inspect.isclass(one) and issubclass(one, BaseException)


def example(name: str, one: Any, examples: str) -> bool:
    return exempt(one) or re.search(rf"\b{name.rpartition('.')[2]}\b", examples) is not None


CHECKS: dict[str, Callable[[str, Any, str], bool]] = {
    "summary": summary,
    "arguments": arguments,
    "errors": errors,
    "example": example,
}


def missing(check: str) -> list[str]:
    found = []
    for page, names in public().items():
        text = "\n".join(BLOCK.findall((PAGES / page).read_text()))
        for its in names.values():
            docs = [inspect.getdoc(part) or "" for part in its.values()]
            text += "\n".join(block for doc in docs for block in EXAMPLE.findall(doc))
        for name, its in names.items():
            for part, member in its.items() if check != "example" else [(name, its[name])]:
                if not CHECKS[check](part, member, text):
                    found.append(f"{page}: {part}")
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_public_names_are_documented(check: str) -> None:
    found = missing(check)
    assert not found, f"without {check}:\n" + "\n".join(found)


ROOT = PAGES.parents[1]
HISTORY = PAGES.parent / "stability.md"
"""The page that lists old names."""


def unknown(text: str) -> list[str]:
    """Return what a text states and does not exist: names of a session, its arguments, and classes of ``uneven``."""
    options = inspect.signature(uneven.Session).parameters
    return [
        *(name for name in re.findall(r"\bsession\.(\w+)", text) if name != "md" and not hasattr(uneven.Session, name)),
        *(name for name in re.findall(r"\bSession\((\w+)=", text) if name not in options),
        *(name for name in re.findall(r"\buneven\.([A-Z]\w+)", text) if not hasattr(uneven, name)),
    ]


def test_the_names_that_pages_state_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    wrong = [f"{page.name}: {name}" for page in pages if page != HISTORY for name in unknown(page.read_text())]
    assert not wrong
    assert unknown("`session.stepp`, uneven.Session(not=1) and uneven.Sezzion") == ["stepp", "not", "Sezzion"]


class Undocumented:
    """One without its argument."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(size)

    def go(self) -> None: ...


class Mixin:
    """Overrides a method of a class that stands next to it."""

    def put(self, item: object) -> None: ...
    def go(self) -> None: ...


class Mixed(Mixin, Queue): ...


def test_a_method_of_another_package_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mixin, "__module__", "uneven.mixin")
    assert [name for name, _ in parts("Mixin", Mixin, ())] == ["Mixin", "Mixin.go"]


def test_what_is_missing_is_seen() -> None:
    assert not summary("go", Undocumented.go, "")
    assert not arguments("Undocumented", Undocumented, "")
    assert not example("uneven.Undocumented", Undocumented, "Documented()")
    assert example("uneven.Undocumented", Undocumented, "x = Undocumented(1)")


def test_an_error_that_the_docstring_does_not_name_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Undocumented.__init__, "__module__", "uneven.undocumented")
    assert not errors("Undocumented", Undocumented, "")
