"""Tiny distributions with entry points, as pip leaves them in a folder on ``sys.path``."""

from __future__ import annotations

from pathlib import Path

MINE = """
from uneven.policy.balance import Balancer
from uneven.policy.core.actions import Split
from uneven.policy.predict import Last
from uneven.policy.sync import MA


class Mine(Balancer):
    \"\"\"The last worker takes nearly all.\"\"\"

    adapts = False

    def __init__(self, *, least: int = 1) -> None:
        self.least = least

    def split(self, view):
        n = len(view.members)
        return Split((self.least,) * (n - 1) + (view.global_batch - self.least * (n - 1),), "mine")


class Guess(Last):
    pass


class Often(MA):
    def __init__(self) -> None:
        super().__init__(every=2)
"""

ENTRIES = {
    "uneven.balancers": {"mine": "fast_shares:Mine"},
    "uneven.policies": {"often": "fast_shares:Often"},
    "uneven.predictors": {"guess": "fast_shares:Guess"},
}


def install(
    folder: Path,
    name: str = "fast-shares",
    version: str = "1.2",
    *,
    code: str = MINE,
    entries: dict[str, dict[str, str]] = ENTRIES,
) -> Path:
    """What an installer would leave in ``folder`` of a distribution of one module; the folder belongs on the path."""
    module = name.replace("-", "_")
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return folder
