"""Read an ensemble from a TOML file.

::

    [ensemble]
    dataset = "mymodels:train_set"        # a function that returns it, or the object itself
    transform = "mymodels:augment"
    validate = "mymodels:test_set"
    metric = "accuracy"                   # or "loss"
    patience = 3                          # stop a member whose metric has not improved for this number of epochs
    max_epochs = 60

    [members]
    small = "mymodels:make_small"         # a function that returns a fleet.Member
    wide = { factory = "mymodels:make", width = 64 }      # the other keys are its arguments
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from uneven.errors import ConfigError, UnknownNameError, access
from uneven.fleet.ensemble import Ensemble, Factory, Metric, accuracy, own_loss
from uneven.fleet.pure.converge import never, plateau
from uneven.policy.core.tables import convert, document, known, located, shown, text

METRICS: dict[str, Metric] = {"accuracy": accuracy, "loss": own_loss}

Named = Annotated[str, "module:name of an object"]
Made = Annotated[str, "module:name of an object or of a function that returns it"]
KEYS: dict[str, Any] = {
    **dict.fromkeys(("dataset", "validate"), Made),
    **dict.fromkeys(("transform", "validate_transform"), Named),
    **dict.fromkeys(("patience", "max_epochs", "seed"), int),
    "least": float,
    "metric": Metric,
}


def read(path: Path) -> Ensemble:
    """Return the ensemble in a file. Modules are imported from Python's path.

    Raises `ConfigError` if the file cannot be read or names something that does not exist. An unknown table, key or
    metric raises `UnknownNameError`, which offers the nearest name.
    """
    found = _document(path)
    members, asked = found.get("members", {}), found.get("ensemble", {})
    if "dataset" not in asked:
        raise ConfigError(f'{path}: [ensemble] has no dataset: name it as "module:name"')
    made = {}
    for name, value in members.items():
        with located(f"{path}: member {shown(name)}"):
            made[name] = _factory(value)
    options = _options(asked, path)
    with located(str(path)):
        return Ensemble(members=made, **options)


def document_at(path: Path, tables: tuple[str, str]) -> dict[str, Any]:
    """Return the file's contents. Raises `ConfigError` if it cannot be read; the message names the ``tables``."""
    with access(f"read {path}"):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            wanted = " and ".join(f"[{table}]" for table in tables)
            raise ConfigError(f"no file {path}: give the path of a TOML file with the tables {wanted}") from None
    return document(data, str(path))


def _document(path: Path) -> dict[str, dict[str, Any]]:
    found = document_at(path, tables := ("ensemble", "members"))
    for name in tables:
        if not isinstance(one := found.get(name, {}), dict):
            raise ConfigError(f"{path}: {name} is {shown(one)}: give a table that begins with [{name}]")
    known(found, tables, f"table in {path}")
    return found


def _options(asked: Mapping[str, Any], path: Path) -> dict[str, Any]:
    known(asked, KEYS, f"key in {path}")
    found: dict[str, Any] = {}
    for key, value in asked.items():
        with located(f"{path}: {key}"):
            found[key] = convert(KEYS[key], value, _SPECIAL)
    patience, least = found.pop("patience", None), found.pop("least", 0.0)
    found["converged"] = never() if patience is None else plateau(patience, least)
    return found


def _metric(value: Any) -> Metric:
    if text(value) not in METRICS:
        raise UnknownNameError("metric", value, METRICS)
    return METRICS[value]


def _made(value: Any) -> Any:
    found = named(value)
    return _call(found, value)() if callable(found) else found


def _factory(value: Any) -> Factory:
    arguments = dict(value) if isinstance(value, dict) else {"factory": value}
    said = arguments.pop("factory", None)
    if not isinstance(said, str):
        raise ConfigError(f'it is {shown(value)}: give "module:function", or a table with the key factory')
    made: Factory = named(said)
    if not callable(made):
        raise ConfigError(f"{said} is {shown(made)}: give a function that returns a fleet.Member")
    return _call(made, said, arguments)


def _call(function: Callable[..., Any], name: str, arguments: Mapping[str, Any] | None = None) -> Callable[[], Any]:
    """Bind these arguments to the function. Raises `ConfigError` if it does not take them."""
    arguments = arguments or {}
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{name} cannot be called with the keys {list(arguments)}: {error}") from error
    except ValueError:
        pass  # a built-in without a signature
    return partial(function, **arguments) if arguments else function


def named(value: Any) -> Any:
    """Return the object that "module:name" names. Raises `ConfigError` for another form or a missing object."""
    module, colon, name = text(value).partition(":")
    if not (colon and name and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f'it is {shown(value)}: write "module:name"')
    try:
        with access(f"import the module {shown(module)}"):
            found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name):
            raise  # the module exists, but one of its own imports does not
        raise ConfigError(f"no module {shown(module)} in this folder or on Python's path") from error
    if not hasattr(found, name):
        raise ConfigError(f"module {module!r} has no {shown(name)}")
    return getattr(found, name)


_SPECIAL: dict[Any, Callable[[Any], Any]] = {Named: named, Made: _made, Metric: _metric}
