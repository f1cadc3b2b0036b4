"""Cells of the matrix that do not come out as they shall, yet.

A cell that is listed here and comes out right fails the test, so that this table cannot rot. It is to be empty.
"""

from __future__ import annotations

FETCHING = ("fetched_between", "prefetched", "looked_ahead", "listed")
EVERY = ("even", "static", "moving")

KNOWN: dict[tuple[str, str, str], str] = {
    **{(name, "bsp", shares): "point 1" for name in (*FETCHING, "accumulated_fetching", "backward_twice")
       for shares in EVERY},
    **{(name, "local", shares): "point 1" for name in FETCHING for shares in EVERY},
    **{("left_by_rank_0", policy, shares): "point 3" for policy in ("bsp", "local") for shares in EVERY},
    **{("skipped_by_one", "bsp", shares): "point 3" for shares in EVERY},
}  # fmt: skip
"""(idiom, policy, shares) → the point of the issue that it waits for."""
