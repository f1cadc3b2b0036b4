"""The files of cluster descriptions, and of the recorded series that they name."""

import csv
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from uneven.cluster.pure.describe.parse import from_toml, preconditioner_from_toml
from uneven.cluster.pure.describe.spec import ClusterSpec, Preconditioning
from uneven.cluster.pure.simulate.calibrate import MeasuredStep
from uneven.cluster.series import SeriesFiles
from uneven.errors import ConfigError, UnknownNameError, access
from uneven.policy.core.tables import hints, known, located


def shipped() -> tuple[str, ...]:
    """Return the names of the descriptions that come with uneven, sorted."""
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load(name_or_path: str | Path) -> ClusterSpec:
    """Return the cluster of a TOML file, given its path, or the bare name of one that comes with uneven ("demo4").

    Raises:
        ConfigError: a mistake in it, with file, table, key and value; or an unreadable file.
        UnknownNameError: a bare name that is not shipped, or a key or name in the file that does not exist.
    """
    name = str(name_or_path)
    if name in shipped():
        text = _folder().joinpath(f"{name}.toml").read_text(encoding="utf-8")
        return from_toml(text, f"{name}.toml (comes with uneven)", SeriesFiles(None))
    path = Path(name_or_path)
    with access(f"read {path}"):
        if not path.exists() and path.suffix != ".toml" and len(path.parts) == 1:
            raise UnknownNameError("cluster (and no such file)", name, shipped())
        data = path.read_bytes()
    return from_toml(data, str(path), SeriesFiles(path.parent))


def measured_steps(path: Path) -> list[MeasuredStep]:
    """Return the measured steps of a CSV file with the columns ``seconds`` and, optionally, ``sync``, ``nodes`` and
    ``batch``. Raises ConfigError, with file and line: unreadable, an unknown column, or a value of another kind."""
    with access(f"read {path}"):
        text = path.read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    found = []
    for line, row in enumerate(rows, start=2):
        with located(f"{path}, line {line}"):
            known({key: value for key, value in row.items() if key is not None}, hints(MeasuredStep), "column")
            made: dict[str, Any] = {key: value for key, value in row.items() if value}
            try:
                for key, kind in (("seconds", float), ("nodes", int), ("batch", int)):
                    if key in made:
                        made[key] = kind(made[key])
            except ValueError:
                raise ConfigError(f"{key} = {made[key]!r}: give a number") from None
            if not made.get("seconds", 0.0) > 0.0:
                raise ConfigError("seconds must be a positive number")
            found.append(MeasuredStep(**made))
    return found


def preconditioner(path: Path) -> Preconditioning:
    """Return the ``[preconditioner]`` table of a file, as ``KFAC.describe()`` writes it; errors as for :func:`load`."""
    with access(f"read {path}"):
        data = path.read_bytes()
    return preconditioner_from_toml(data, str(path))


def _folder() -> Traversable:
    return resources.files("uneven.cluster") / "shipped"
