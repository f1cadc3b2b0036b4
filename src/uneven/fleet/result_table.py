"""The table of the members of a training, the best first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from uneven.fleet.engine.run import best_checkpoint
from uneven.fleet.engine.state import MemberState, RunState
from uneven.fleet.ensemble import Ensemble


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member of the table.

    Attributes:
        rank: 1 is the best; members that failed come last.
        metric: at its best epoch; not a number if it has none.
        epochs: trained for.
        best_epoch: counted from 1; 0 if it has none.
        device_s: seconds times devices that it held.
        status: "trained" or "failed".
        why: what ended it.
        note: why it was not trained on more devices, if it could not be.
        checkpoint: of its best epoch, for ``torch.load(…, weights_only=True)``; None of a member that failed.
    """

    rank: int
    name: str
    metric: float
    epochs: int
    best_epoch: int
    device_s: float
    status: str
    why: str
    checkpoint: Path | None
    note: str = ""

    @property
    def reason(self) -> str:
        """Why it ended and what was not possible, in one line."""
        return "; ".join(text.splitlines()[-1] for text in (self.why, self.note) if text)


def ranked(ensemble: Ensemble, state: RunState, directory: Path) -> tuple[MemberRow, ...]:
    """A row for each member: the best first, those that failed last."""
    higher = ensemble.metric.higher_is_better
    found = []
    for name, member in state.members.items():
        best = member.history(higher).best + 1 if member.epochs else 0
        metric = member.epochs[best - 1].metric if best else math.nan
        trained = member.status == "trained"
        path = best_checkpoint(directory, ensemble, state, name) if trained else None
        found.append((name, metric, best, member, path))
    worst = -math.inf

    def order(one: tuple[str, float, int, MemberState, Path | None]) -> tuple[bool, float]:
        worth = one[1] if higher else -one[1]
        return one[3].status != "trained", -(worth if math.isfinite(worth) else worst)

    found.sort(key=order)
    return tuple(
        MemberRow(rank, name, metric, len(one.epochs), best, one.device_s, one.status, one.why, path, one.note)
        for rank, (name, metric, best, one, path) in enumerate(found, 1)
    )
