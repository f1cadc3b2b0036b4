"""Read a search from a TOML file.

::

    [search]
    train = "mymodels:train"              # a function of a trial, or a search.Trainable
    metric = "accuracy"
    trials = 64
    scheduler = "asha:max_t=27,reduction_factor=3"
    searcher = "optuna:tpe"               # other keys are arguments of search.run
    data = "mymodels:train_set"           # the object, or a function that returns it; also validate
    transform = "mymodels:augment"

    [space]
    lr = { loguniform = [1e-4, 1e-1] }
    depth = { integer = [1, 4] }
    width = { choice = [32, 64, 128] }
    mix = { uniform = [0, 1] }
    batch = 64                            # a constant
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, UnknownNameError
from uneven.fleet.ensemble_file import Made, Named, document_at, named
from uneven.policy.core.tables import convert, hints, items, known, located, required, shown, table, text
from uneven.search.pure.space import Domain, Plain, choice, grid, integer, loguniform, uniform
from uneven.search.search_spec import SearchOptions

Directories = str | tuple[str, ...]


def _made(value: Any) -> Any:
    """Return the named object, or what it returns if it is a function."""
    found = named(value)
    return found() if callable(found) and not hasattr(found, "__getitem__") else found


def _directories(value: Any) -> tuple[str, ...]:
    return (text(value),) if isinstance(value, str) else items(value, text)


_OPTIONS = ("devices", "directory", "engine")  # depend on the machine, so a file may not set them
KEYS: dict[str, Any] = {
    "train": Named, "metric": str,
    **{key: hint for key, hint in hints(SearchOptions).items() if key not in (*_OPTIONS, "progress")},
    "data": Made, "validate": Made, "transform": Named, "validate_transform": Named, "warm_start": Directories,
}  # fmt: skip
_SPECIAL: dict[Any, Callable[[Any], Any]] = {Named: named, Made: _made, Directories: _directories}
DOMAINS: dict[str, Callable[..., Domain]] = {
    "uniform": uniform,
    "loguniform": loguniform,
    "integer": integer,
    "choice": choice,
    "grid": grid,
}


def read(path: Path) -> dict[str, Any]:
    """Return the arguments of ``search.run``.

    Raises `ConfigError` if the file cannot be read or names something that does not exist. An unknown table, key or
    kind raises `UnknownNameError`, which offers the nearest name.
    """
    found = document_at(path, tables := ("search", "space"))
    with located(str(path)):
        known(found, tables)
        asked = table(required(found, "search"))
        for key in _OPTIONS:
            if key in asked:
                raise ConfigError(f"[search] has no key {key}: give --{key} on the command line")
        known(asked, KEYS)
        for key in ("train", "metric"):
            required(asked, key)
    given: dict[str, Any] = {}
    for key, value in asked.items():
        with located(f"{path}: {key}"):
            given[key] = convert(KEYS[key], value, _SPECIAL)
    with located(f"{path}: space"):
        space = table(found.get("space", {}))
    given["space"] = {}
    for name, value in space.items():
        with located(f"{path}: {shown(name)}"):
            given["space"][name] = _domain(value)
    return given


def _domain(value: Any) -> Domain | Plain:
    if not isinstance(value, dict):
        plain: Plain = value
        return plain
    if len(value) != 1:
        raise ConfigError(f"{shown(value)}: give one kind, such as {{ loguniform = [1e-4, 1e-1] }}")
    ((kind, values),) = value.items()
    if kind not in DOMAINS:
        raise UnknownNameError("kind of setting", kind, DOMAINS)
    try:
        return DOMAINS[kind](*items(values))
    except TypeError as error:
        raise ConfigError(f"{kind} = {shown(values)}: give a list of two numbers") from error
