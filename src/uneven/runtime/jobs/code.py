"""Digests of the code that a run trains with.

::

    train ──► function m.train ──┬─► function m.step     by the names in its bytecode
                                 ├─► class m.Net         its methods, attributes and bases
                                 └─► m.WIDTH             a global value

Equal code has equal digests in every process: no digest depends on lines, comments, docstrings, addresses or the order
of sets. Of installed packages only the names count; large arrays and lists by a sample.
"""

import dis
import math
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib.util import find_spec, resolve_name
from itertools import islice
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from uneven.runtime.installed import FOLDER

Code = dict[str, dict[str, str]]  # name of an object, such as "train" → each part that it depends on → digest

_MOST_VALUES, _MOST_ELEMENTS, _MOST_CHARACTERS, _DEEPEST = 10_000, 1024, 2**16, 20
_GLOBAL, _ATTRIBUTE = ("LOAD_GLOBAL", "LOAD_NAME"), ("LOAD_ATTR", "LOAD_METHOD")
_WRAPPED = ("__wrapped__", "fget", "fset", "fdel")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# The errors of objects that pickle does not support.
_CLOSED = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError, pickle.PicklingError)


def code_of(given: Mapping[str, object], *trained: Any) -> Code:
    """Return the digests of named objects. Packages of ``trained`` functions count as user code, also if
    installed."""
    own = {str(named(one).__module__).partition(".")[0] for one in trained}
    given = {"Python": sys.implementation.cache_tag, **given}
    return {name: _CodeReader(own).parts(name, value) for name, value in given.items()}


def named(function: Any) -> Any:
    """Return the function of a ``partial``, or the class of a callable object; both have a module and a name."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function)


class _CodeReader:
    def __init__(self, own: set[str]) -> None:
        self._packages = own
        self._alike: dict[
            str, dict[int, object]
        ] = {}  # names → functions and classes, referenced so that their ids stay unique
        self._parts: dict[str, Callable[[], str]] = {}
        self._left = 0

    def parts(self, name: str, value: object) -> dict[str, str]:
        """Return the digest of each part that a value depends on, including the value under `name`."""
        self._refer(name, partial(self._text, value))
        found: dict[str, str] = {}
        while todo := [one for one in self._parts if one not in found]:
            for one in todo:
                self._left = _MOST_VALUES
                found[one] = sha256(self._parts[one]().encode(errors="surrogatepass")).hexdigest()[:16]
        return found

    def _refer(self, name: str, text: Callable[[], str], thing: object = None) -> str:
        # Different objects may have one name (closures); they are numbered in the order in which they are met.
        alike = self._alike.setdefault(name, {})
        alike.setdefault(id(thing), thing)
        place = [*alike].index(id(thing))
        name += f" ({place + 1})" if place else ""
        self._parts.setdefault(name, text)
        return name

    def _own(self, module: str, file: str | None) -> bool:
        package = module.partition(".")[0]
        if package in self._packages or file is None or package in sys.stdlib_module_names:
            return package in self._packages
        return FOLDER not in Path(file).parents and not {"site-packages", "dist-packages"} & {*Path(file).parts}

    def _function(self, function: FunctionType, depth: int) -> str:
        scope, code = function.__globals__, function.__code__
        name = f"function {scope.get('__name__')}.{code.co_qualname}"
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
        if not self._own(
            str(scope.get("__name__")), scope.get("__file__")
        ):  # from a package, e.g. a decorator: only what it wraps
            return f"{name} {self._text(getattr(function, '__wrapped__', cells), depth + 1)}"
        rest = function.__defaults__, function.__kwdefaults__, cells, vars(function)
        return self._refer(name, lambda: f"{self._code(code, scope)}\n{self._text(rest)}", function)

    def _class(self, kind: type) -> str:
        name = f"class {kind.__module__}.{kind.__qualname__}"
        if not self._own(kind.__module__, getattr(sys.modules.get(kind.__module__), "__file__", None)):
            return name
        methods = FunctionType | classmethod | staticmethod | property
        members = {key: one for key, one in vars(kind).items() if key[:2] != "__" or isinstance(one, methods)}
        return self._refer(name, lambda: self._text((kind.__bases__, members)), kind)

    def _code(self, code: CodeType, scope: Mapping[str, Any]) -> str:
        """Return the bytecode with the values of its globals, and of attributes of the user's other modules."""
        words = [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], code.co_exceptiontable.hex()]
        module: ModuleType | None = None
        past: list[Any] = [0, ()]
        for step in dis.get_instructions(code):
            if step.opname == "EXTENDED_ARG":  # upper bits of the next argument, which dis includes there
                continue
            value, space = step.argval, scope if step.opname in _GLOBAL else {}
            if module is not None and step.opname in _ATTRIBUTE:
                space = vars(module)
            module = None
            if step.opname == "IMPORT_NAME":
                # The two constants loaded before IMPORT_NAME are the level (relative dots) and the imported names.
                self._imported("." * past[0] + value, past[1] or (), scope.get("__package__"))
            past = [past[1], value]
            if isinstance(value, str) and value in space:
                value = space[value]
                if not isinstance(value, FunctionType | type | ModuleType):
                    value = self._refer(f"{space.get('__name__')}.{step.argval}", partial(self._text, value))
                elif isinstance(value, ModuleType) and self._own(value.__name__, getattr(value, "__file__", None)):
                    module = value
            text = self._code(value, scope) if isinstance(value, CodeType) else self._text(value)
            words.append(f"{step.opname} {text}")
        return "\n".join(words)

    def _imported(self, name: str, items: tuple[str, ...], package: str | None) -> None:
        """Add a user's module that a function imports, as a whole."""
        with suppress(ImportError, SyntaxError, ValueError):
            name = resolve_name(name, package)
            for one in (name.partition(".")[0], name, *(f"{name}.{item}" for item in items)):
                spec: Any = find_spec(one)
                if spec is not None and not self._own(one, spec.origin):
                    return  # find_spec imports a package to find its submodules; only the user's may be imported
                if spec is not None and (code := spec.loader.get_code(one)) is not None:
                    self._refer(f"module {one}", partial(self._code, code, {"__package__": spec.parent}))

    def _text(self, value: Any, depth: int = 0) -> str:
        """Return a value as text; one that is nested too deeply, or follows too many others, counts by its type."""
        self._left -= 1
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if self._left < 0 or depth > _DEEPEST:
            return name
        match value:
            case None | bool() | int() | float() | complex():
                return f"{name} {value!r}"
            case str() | bytes() | bytearray():
                return f"{name} {len(value)} {value[:_MOST_CHARACTERS]!r} {value[-_MOST_CHARACTERS:]!r}"
            case ModuleType():
                return value.__name__
            case FunctionType():
                return self._function(value, depth)
            case type():
                return self._class(value)
            case set() | frozenset() | dict():
                pairs = value.items() if isinstance(value, dict) else value
                return f"{name} {len(value)} {', '.join(sorted(self._words(pairs, depth)))}"
        try:
            inner = value if isinstance(value, list | tuple) else _inside(value)
        except _CLOSED:
            return name
        return f"{name} {len(inner)} {', '.join(self._words(inner, depth))}"

    def _words(self, values: Any, depth: int) -> Iterator[str]:
        return (self._text(one, depth + 1) for one in islice(values, max(0, self._left)))


def _inside(value: Any) -> tuple[object, ...]:
    """Return an object's parts: a sample of an array, wrapped functions, pickle's state, or its repr."""
    if isinstance(value, np.ndarray) or hasattr(value, "numel"):
        shape = [*value.shape]
        if shape and (count := math.prod(shape)):
            places = np.linspace(0, count - 1, min(count, _MOST_ELEMENTS)).astype(np.int64)
            value = value[np.unravel_index(places, shape)]
        return str(value.dtype), shape, value.tolist()
    if wrapped := [getattr(value, name) for name in _WRAPPED if hasattr(value, name)]:
        return (*wrapped,)
    if not hasattr(value, "__dict__") and not hasattr(type(value), "__slots__"):
        return (_ADDRESS.sub("", repr(value)),)
    # (constructor, arguments, state) and iterators over list items and dict items.
    made = value.__reduce_ex__(4)
    return *made[:3], *(list(islice(one, _MOST_VALUES)) for one in made[3:5] if one is not None)
