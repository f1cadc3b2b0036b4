"""The files of cluster descriptions, and of the recorded series that they name."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from uneven.cluster.pure.describe.parse import from_toml, preconditioner_from_toml
from uneven.cluster.pure.describe.spec import ClusterSpec, Preconditioning
from uneven.cluster.series import SeriesFiles
from uneven.errors import UnknownNameError, access


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


def preconditioner(path: Path) -> Preconditioning:
    """Return the ``[preconditioner]`` table of a file, as ``KFAC.describe()`` writes it; errors as for :func:`load`."""
    with access(f"read {path}"):
        data = path.read_bytes()
    return preconditioner_from_toml(data, str(path))


def _folder() -> Traversable:
    return resources.files("uneven.cluster") / "shipped"
