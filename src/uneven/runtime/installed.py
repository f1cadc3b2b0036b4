"""The version and the location of this copy of uneven, and the extras that are installed."""

from importlib.util import find_spec
from pathlib import Path

from uneven.errors import ConfigError, install_hint

VERSION = "0.1.0"

FOLDER = Path(__file__).parents[1]  # its parent is on the import path


def need(extra: str, *packages: str) -> None:
    """Check that the packages of an extra are installed, before work starts that needs them.

    Raises:
        ConfigError: names the packages that are missing, and the command that installs the extra.
    """
    if missing := [one for one in packages if find_spec(one) is None]:
        are = "is" if len(missing) == 1 else "are"
        raise ConfigError(f"{' and '.join(missing)} {are} not installed: {install_hint(f'.[{extra}]')}")
