"""What each step of a stream has cost, in seconds and in calls of the truth network. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PriceLine:
    """One line of the price list.

    Attributes:
        seconds: None where nobody has measured it.
        calls: objects that the truth network has looked at.
        share: of what the truth network on every object would compute; None where it is not about computing.
    """

    step: str
    seconds: float | None
    calls: int = 0
    share: float | None = None


def price_list(
    tuned: Mapping[str, float], counts: Mapping[str, Any], setting: Mapping[str, Any], judged: int
) -> tuple[PriceLine, ...]:
    """From choosing the settings to the queries so far.

    Args:
        tuned: the price of choosing, see :class:`~uneven.focus.tune.Tuned`.
        counts: of ingest, see :class:`~uneven.focus.taking.Counts`.
        setting: of the newest network.
        judged: centroids that queries have had judged.
    """
    objects = max(1, int(counts.get("objects", 0)))
    seconds = counts.get("seconds", {})
    looked = int(counts.get("looked", 0))
    names = {"decode": "ingest: decode", "find": "ingest: find moving objects", "look": "ingest: cheap network",
             "cluster": "ingest: cluster, index"}  # fmt: skip
    shares = {"look": setting["ingest"] * looked / objects}
    calls = int(tuned.get("truth_calls", 0))
    return (
        PriceLine("choose: truth network on the sample", tuned.get("label_s"), calls, calls / objects),
        PriceLine("choose: train the candidates", tuned.get("train_s")),
        PriceLine("choose: sweep", tuned.get("sweep_s")),
        *(PriceLine(text, seconds.get(name), 0, shares.get(name)) for name, text in names.items()),
        PriceLine("queries: truth network on centroids", None, judged, judged / objects),
    )
