"""The version and the location of this copy of uneven, and the extras that are installed."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, install_hint


def lazy(package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """Return a function for a package's ``__getattr__``, and let ``dir`` list the same names.

    Args:
        homes: full names of modules → their names that the package exports.
        modules: modules of the package that it exports.
    """
    home = {name: module for module, names in homes.items() for name in names}
    here = vars(sys.modules[package])
    here["__dir__"] = lambda: sorted({*here, *home, *modules})

    def found(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        here[name] = getattr(importlib.import_module(home[name]), name)
        return here[name]

    return found


VERSION = "0.2.0"

FOLDER = Path(__file__).parents[1]  # its parent is on the import path


def need(extra: str, *packages: str) -> None:
    """Check that the packages of an extra are installed, before work starts that needs them.

    Raises:
        ConfigError: names the packages that are missing, and the command that installs the extra.
    """
    if missing := [one for one in packages if find_spec(one) is None]:
        are = "is" if len(missing) == 1 else "are"
        raise ConfigError(f"{' and '.join(missing)} {are} not installed: {install_hint(f'.[{extra}]')}")
