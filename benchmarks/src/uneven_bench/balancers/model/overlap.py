"""Each worker's own communication, and how much of it the backward pass hides.

What is seen of it is c = max(u, w − ρ Γ): buckets begin to move when the computing has come to a part 1 − ρ, so the
longer it takes, the more is hidden; the last bucket, u, never is. Ours; the overlap is modelled by others too
(specification, §6: Cannikin).
"""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np

from uneven.policy.balance._fitting import Points, added
from uneven.policy.balance._intake import ReportColumns, pick
from uneven.policy.core.exact import Floats
from uneven.policy.core.plain import PerMember, read

_MEMORY = 32.0  # iterations that the level is the mean of
_STRANGE = 0.25  # relative to what is seen of it: further off twice in a row is a change for good …
_NOTICED = 0.01  # … unless it is less than this of the whole time
_MOST_HIDDEN = 0.9  # of each second of computing
_STIFF = 0.03  # relative spread of computing times above which they tell what is hidden


class OverlapState(TypedDict):
    """What a checkpoint holds of it."""

    members: list[int]
    level_s: PerMember
    least_s: PerMember
    hidden: PerMember
    iterations: PerMember
    strange: PerMember


class Overlap:
    """Tracks w, the communication that would be seen if nothing were hidden, and ρ."""

    def __init__(self) -> None:
        self._members: tuple[int, ...] = ()
        self.level_s = np.zeros(0)  # w
        self.least_s = np.zeros(0)  # u: the least that was seen
        self.hidden = np.zeros(0)  # ρ
        self._iterations = np.zeros(0)
        self._strange = np.zeros(0)

    def meet(self, members: tuple[int, ...]) -> None:
        """Others take part."""
        if members == self._members:
            return
        places = {rank: place for place, rank in enumerate(self._members)}
        old, none = [places.get(rank, -1) for rank in members], np.zeros(len(members))
        self.level_s, self.least_s = pick(self.level_s, old, none), pick(self.least_s, old, none)
        self.hidden = pick(self.hidden, old, none)
        self._iterations, self._strange = pick(self._iterations, old, none), pick(self._strange, old, none)
        self._members = members

    def seconds(self, local_s: Floats) -> Floats:
        """What is seen of the communication beside so much computing."""
        return np.maximum(self.level_s - self.hidden * local_s, self.least_s)

    def learn(self, reports: ReportColumns, points: Points) -> Points:
        """Take in the clean reports of one look.

        Returns:
            The points, moved along where the communication has changed for good.
        """
        use = reports.clean
        silent = not (self.level_s.any() or reports.transfer_s.any())
        if silent or not use.any():
            return points
        seen_s = reports.transfer_s
        expected_s = self.seconds(reports.local_s)
        off_s = seen_s - expected_s
        far = np.maximum(_STRANGE * expected_s, _NOTICED * reports.local_s)
        first = self._iterations == 0.0
        strange = use & ~first & (np.abs(off_s) > far)
        changed = strange & (self._strange > 0.0)
        self._strange = np.where(changed, 0.0, np.where(use, strange * 1.0, self._strange))
        iterations = np.where(changed | first, 0.0, self._iterations) + reports.iterations
        part = np.minimum(reports.iterations / np.minimum(iterations, _MEMORY), 1.0)
        step_s = np.where(changed | first, off_s, np.minimum(np.maximum(off_s, -far), far))
        level_s = np.where(changed | first, seen_s + self.hidden * reports.local_s, self.level_s + part * step_s)
        self.level_s = np.where(use, level_s, self.level_s)
        least_s = np.where(changed | first, seen_s, np.minimum(self.least_s, seen_s))
        self.least_s = np.where(use, least_s, self.least_s)
        self._iterations = np.where(use, iterations, self._iterations)
        if changed.any():
            points = points._replace(transfer_s=np.maximum(points.transfer_s + np.where(changed, off_s, 0.0), 0.0))
        self._look_at(points, reports)
        return points

    def _look_at(self, points: Points, reports: ReportColumns) -> None:
        """ρ: how much less is seen for each second more of computing, over the sizes at which both are known."""
        if not points.transfer_s.any():
            return
        weight, local_s, transfer_s = points.weight, points.local_s, points.transfer_s
        w = np.maximum(added(weight), 1e-300)
        t, c = added(weight * local_s) / w, added(weight * transfer_s) / w
        away = weight * (local_s - t)
        tt, tc = added(away * (local_s - t)), added(away * (transfer_s - c))
        hidden = np.minimum(np.maximum(-tc / np.maximum(tt + w * (_STIFF * t) ** 2, 1e-300), 0.0), _MOST_HIDDEN)
        known = self._iterations > 0.0
        # w is what is seen where nothing is hidden: with another ρ it is another, so that c stays what it is now.
        shift_s = (hidden - self.hidden) * np.where(reports.clean, reports.local_s, t)
        self.level_s = np.where(known, self.level_s + shift_s, self.level_s)
        self.hidden = np.where(known, hidden, self.hidden)

    def state_dict(self) -> dict[str, Any]:
        """What was learnt."""
        return {
            "members": list(self._members),
            "level_s": self.level_s.tolist(),
            "least_s": self.least_s.tolist(),
            "hidden": self.hidden.tolist(),
            "iterations": self._iterations.tolist(),
            "strange": self._strange.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        saved = read(OverlapState, state)
        self._members = tuple(saved["members"])
        self.level_s, self.least_s = np.array(saved["level_s"], np.float64), np.array(saved["least_s"], np.float64)
        self.hidden = np.array(saved["hidden"], np.float64)
        self._iterations = np.array(saved["iterations"], np.float64)
        self._strange = np.array(saved["strange"], np.float64)
