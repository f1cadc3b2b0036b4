"""The table of streams during an ingest, for the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven.focus.query import VideoIndex
from uneven.policy.core.printable import printable

_COLUMNS = (
    "stream",
    "of the video",
    "frames",
    "objects/s",
    "clusters",
    "backlog",
    "dropped",
    "× real time",
    "work",
    "",
)


def table(index: VideoIndex) -> Table:
    """Return a row for each stream; *work* is the cheap network's, relative to the truth network on all objects."""
    shown = Table(box=SIMPLE_HEAD, padding=0)  # ten headings must fit in 80 columns
    for name in _COLUMNS:
        left, word = name in ("stream", ""), max(map(len, name.split(" ")))
        shown.add_column(name, justify="left" if left else "right", overflow="fold", min_width=word)
    for name, store in index.streams.items():
        counts, _ = store.progress()
        if not counts:
            shown.add_row(printable(name), *[""] * (len(_COLUMNS) - 2), "begins")
            continue
        wall_s = max(counts["wall_s"], 1e-9)
        setting = list(store.networks().values())[-1]
        share = setting["ingest"] * counts["looked"] / max(1, counts["objects"])
        cells = (
            f"{counts['time_s']:.0f} s",
            f"{counts['frames']}",
            f"{counts['objects'] / wall_s:.0f}",
            f"{counts['clusters']}",
            f"{counts['backlog']}",
            f"{counts['dropped']}",
            f"{counts['time_s'] / wall_s:.0f}",
            f"{share:.2%}",
            "done" if counts["done"] else "",
        )
        shown.add_row(printable(name), *cells)
    return shown


def over(index: VideoIndex) -> bool:
    """Return whether every stream has ended."""
    return all(store.progress()[0].get("done", False) for store in index.streams.values())
