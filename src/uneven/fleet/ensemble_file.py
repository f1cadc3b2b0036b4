"""An ensemble described in TOML.

::

    [ensemble]
    dataset = "mymodels:train_set"        # a function that returns it, or the object itself
    transform = "mymodels:augment"
    validate = "mymodels:test_set"
    metric = "accuracy"                   # or "loss"
    patience = 3                          # stop a member whose metric has not become better for so many epochs
    max_epochs = 60

    [members]
    small = "mymodels:make_small"         # a function that returns a fleet.Member
    wide = { factory = "mymodels:make", width = 64 }      # the other keys are its arguments
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, UnknownNameError
from uneven.fleet.converge import never, plateau
from uneven.fleet.ensemble import Ensemble, Factory, Metric, accuracy, own_loss

METRICS: dict[str, Metric] = {"accuracy": accuracy, "loss": own_loss}

_NUMBERS = {"patience": int, "least": float, "max_epochs": int, "seed": int}
_CALLED = ("dataset", "validate")
_TAKEN = ("transform", "validate_transform")
_KEYS = (*_CALLED, *_TAKEN, "metric", *_NUMBERS)


def read(path: Path) -> Ensemble:
    """The ensemble in a file. Modules are imported from where Python finds them.

    Raises:
        ConfigError: the file cannot be read or understood, or names something that is not there.
        UnknownNameError: a table, key or metric that does not exist, offering the nearest one.
    """
    document = _document(path)
    members, asked = document.get("members", {}), document.get("ensemble", {})
    if "dataset" not in asked:
        raise ConfigError(f'{path}: [ensemble] has no dataset: name it as "module:name"')
    made = {name: _factory(value, f"{path}: member {name!r}") for name, value in members.items()}
    return Ensemble(members=made, **_options(asked, path))


def _document(path: Path) -> dict[str, dict[str, Any]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}: give the path of a TOML file with the tables [ensemble] and [members]"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {path}: {reason}") from error
    for name, table in document.items():
        if name not in ("ensemble", "members"):
            raise UnknownNameError(f"table in {path}", name, ("ensemble", "members"))
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} is {table!r}: it is a table, which begins with [{name}]")
    return document


def _options(asked: Mapping[str, Any], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in asked.items():
        where = f"{path}: {key}"
        if key not in _KEYS:
            raise UnknownNameError(f"key in {path}", key, _KEYS)
        if key in _NUMBERS:
            wanted = (int, float) if _NUMBERS[key] is float else int
            if isinstance(value, bool) or not isinstance(value, wanted):
                raise ConfigError(f"{where} is {value!r}: it is a number")
            found[key] = value
        elif key == "metric":
            if value not in METRICS:
                raise UnknownNameError("metric", str(value), METRICS)
            found[key] = METRICS[value]
        else:
            named = _named(value, where)
            found[key] = named() if key in _CALLED and callable(named) else named
    patience, least = found.pop("patience", None), found.pop("least", 0.0)
    found["converged"] = never() if patience is None else plateau(patience, least)
    return found


def _factory(value: Any, where: str) -> Factory:
    arguments = dict(value) if isinstance(value, dict) else {"factory": value}
    named = arguments.pop("factory", None)
    if not isinstance(named, str):
        raise ConfigError(f'{where} is {value!r}: give "module:function", or a table with the key factory')
    made: Factory = _named(named, where)
    if not callable(made):
        raise ConfigError(f"{where}: {named} is {made!r}: give a function that returns a fleet.Member")
    return partial(made, **arguments) if arguments else made


def _named(value: Any, where: str) -> Any:
    module, colon, name = str(value).partition(":")
    if not (isinstance(value, str) and colon and module and name):
        raise ConfigError(f'{where} is {value!r}: it is named as "module:name"')
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name):
            raise  # the module is there, and misses one of its own
        raise ConfigError(f"{where}: there is no module {module!r}, neither here nor where Python looks") from error
    if not hasattr(found, name):
        raise ConfigError(f"{where}: module {module!r} has no {name!r}")
    return getattr(found, name)
