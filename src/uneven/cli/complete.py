"""The completion of names in a shell: plug-ins, clusters and runs. It imports no torch."""

from pathlib import Path
from typing import Any

from uneven.errors import ConfigError


def balancers(incomplete: str) -> list[str]:
    from uneven.policy.balance import balancers as registry

    return _listed(registry, incomplete)


def policies(incomplete: str) -> list[str]:
    from uneven.policy.sync import policies as registry

    return _listed(registry, incomplete)


def clusters(incomplete: str) -> list[str]:
    from uneven.cluster import files

    return [name for name in files.shipped() if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Return the folders in ``./runs`` that begin with this text, the newest first."""
    try:
        folders = [path for path in Path("runs").iterdir() if path.is_dir()]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:  # a shell shows no errors of a completion
        return []
    return [str(path) for path in folders if str(path).startswith(incomplete)]


def clusters_and_runs(incomplete: str) -> list[str]:
    return [*clusters(incomplete), *runs(incomplete)]


def _listed(registry: Any, incomplete: str) -> list[str]:
    """Return the names for the last item of a list with commas, each behind the items before it."""
    before, comma, last = incomplete.rpartition(",")
    if ":" in incomplete:  # options of a plug-in
        return []
    try:
        names = [name.split()[0] for name in registry.listed()]
    except ConfigError:
        names = list(registry)
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]
