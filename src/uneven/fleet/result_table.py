"""Rank the members of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from uneven.fleet.engine.fleet_run import best_checkpoint
from uneven.fleet.engine.fleet_state import MemberState, RunState
from uneven.fleet.ensemble import Ensemble


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One row of the table of members."""

    rank: int  # 1 is the best; failed members come last
    name: str
    metric: float  # at the best epoch; NaN if there is none
    epochs: int  # number of trained epochs
    best_epoch: int  # from 1; 0 if there is none
    device_s: float  # seconds times devices that it held
    status: str  # "trained" or "failed"
    why: str  # the reason for its end
    checkpoint: Path | None  # of the best epoch, for `torch.load(…, weights_only=True)`; None if the member failed
    note: str = ""  # why it was not trained on more devices, if it could not be

    @property
    def reason(self) -> str:
        """The reason for its end and its note, in one line."""
        return "; ".join(text.splitlines()[-1] for text in (self.why, self.note) if text)


def ranked(ensemble: Ensemble, state: RunState, directory: Path) -> tuple[MemberRow, ...]:
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
