"""Finds cluster descriptions: files, and the ones that come with uneven; and the recorded series that they name."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from uneven.cluster.parse import from_toml, preconditioner_from_toml
from uneven.cluster.series import SeriesFiles
from uneven.cluster.spec import ClusterSpec, Preconditioning
from uneven.errors import UnknownNameError, access


def shipped() -> tuple[str, ...]:
    """Names of the descriptions that come with uneven, in alphabetical order."""
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load(name_or_path: str | Path) -> ClusterSpec:
    """The cluster that a TOML file describes.

    Args:
        name_or_path: path of a file, or the bare name of one that comes with uneven ("demo4").

    Raises:
        ConfigError: a mistake in it, with file, table, key and value; or a file that cannot be read.
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


def preconditioner(path: Path) -> Preconditioning:
    """What a file with a table ``[preconditioner]`` describes, as ``KFAC.describe()`` writes it.

    Raises:
        ConfigError: a mistake in it, or a file that cannot be read.
        UnknownNameError: a key that does not exist.
    """
    with access(f"read {path}"):
        data = path.read_bytes()
    return preconditioner_from_toml(data, str(path), SeriesFiles(path.parent))


def _folder() -> Traversable:
    return resources.files("uneven") / "clusters"
