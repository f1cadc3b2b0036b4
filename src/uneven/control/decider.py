"""From everybody's reports to the split of the batch, and to the time of the next reports. Pure."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import le
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

import numpy as np

from uneven.balance.base import Balancer
from uneven.balance.bounds import not_growing, still_held
from uneven.balance.profile import Profile
from uneven.control.referee import ABSURD_FACTOR, Complaint, Referee, RefereeState, Verdict
from uneven.control.reports import Report
from uneven.control.spacing import Spacing
from uneven.control.table import Column, ReportTable
from uneven.core.apportion import proportional
from uneven.core.plain import Along, Amount, Count, inside, read
from uneven.core.records import SplitRecord
from uneven.core.views import BalanceView, Limits, Observation
from uneven.errors import ConflictError
from uneven.registry import describe

_REMEMBERED = 1024
"""Splits kept; far more than can be decided within any look-ahead."""

_SUDDEN = 1.5
"""A foretold speed that has grown or shrunk by this factor from one decision to the next is no noise. Ours."""

_AGREE = 3
"""Reports in a row in which a wait has to be there before it counts as the link's. Ours."""

_PROFILE_DOUBT = 0.05
"""Relative; of a speed in a profile: a few steps, at a size near to the first share. Ours."""


class DeciderState(TypedDict):
    """What a checkpoint holds of it."""

    kind: list[str]
    shares: list[Count]
    predicted_per_s: Annotated[list[Amount | None], Along("shares")]
    doubts: Annotated[list[Amount], Along("shares")]
    held: NotRequired[Annotated[list[Count], Along("shares")]]
    waits: NotRequired[list[Amount]]
    referee: RefereeState
    balancer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """What came of one round of reports.

    Attributes:
        split: the new split, or None if the old one stays.
        complaints: one for each report that was not believed.
        soonest: the iteration from whose end on a worker may call for reports early.
        far: the same for a worker whose speed is far off its forecast.
        next: the iteration at whose end the next reports are due if no worker calls.
    """

    split: SplitRecord | None
    complaints: tuple[Complaint, ...]
    soonest: int
    far: int
    next: int


class PartialUpdate(NamedTuple):
    """What came of the reports of some; see :class:`Decision`."""

    split: SplitRecord | None
    complaints: tuple[Complaint, ...]


class Decider:
    """Keeps the split. The same reports get the same answer, on whichever rank it is asked.

    Args:
        balancer: decides.
        members: ranks, ascending; position i of limits, reports and shares belongs to the i-th.
        limits: least and greatest share of each member.
        global_batch: X.
        lookahead: how many iterations ahead of the loop the loaders draw indices.
        budget: share of the iteration time that measuring and deciding may cost.
        profiles: of each rank, where they were taken: until it reports, a worker is as fast as in its profile.
    """

    def __init__(
        self,
        balancer: Balancer,
        members: tuple[int, ...],
        limits: Limits,
        *,
        global_batch: int,
        lookahead: int,
        budget: float,
        profiles: Mapping[int, Profile] | None = None,
    ) -> None:
        self._balancer = balancer
        self._members = members
        self._limits = limits
        self._global_batch = global_batch
        self._lookahead = lookahead
        self._budget = budget
        self._predicted_per_s = np.full(len(members), math.nan)
        self._doubts = np.zeros(len(members))
        self._held = np.zeros(len(members), np.int64)  # by those whose memory is full
        self._waits = deque([0.0] * _AGREE, maxlen=_AGREE)  # of the newest tables, see ReportTable.hidden_s
        self._fingerprint: tuple[tuple[int, ...], float] = ((), 0.0)
        self._referee = Referee()
        self._spacing = Spacing(len(members), budget, limits.lower)
        nothing = (None,) * len(members)
        if profiles:
            self._foresee(profiles)
        first = balancer.split(self._view(0, nothing, self._even()))
        _rehearse(balancer, self._view(0, nothing, first.shares))
        self._splits = deque([(0, first.shares)], maxlen=_REMEMBERED)
        self.newest = first.shares
        self._settled = self._predicted_per_s, self.newest  # as of the last reports of everybody
        self._reason = first.reason

    def _foresee(self, profiles: Mapping[int, Profile]) -> None:
        even = zip(self._members, self._even(), strict=True)
        self._predicted_per_s = np.array([share / profiles[rank].time_s(share) for rank, share in even])
        self._doubts = np.full(len(self._members), _PROFILE_DOUBT)

    def first(self) -> SplitRecord:
        """The split before any report, and why."""
        return SplitRecord(
            decided_at=-1,
            iteration=0,
            shares=self._splits[0][1],
            speeds_per_s=(math.nan,) * len(self._members),
            predicted_per_s=tuple(self._predicted_per_s.tolist()),
            reason=self._reason,
        )

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks, ascending."""
        return self._members

    @property
    def adapts(self) -> bool:
        """Whether reports can change anything."""
        return self._balancer.adapts and len(self._members) > 1

    @property
    def partial_updates(self) -> bool:
        """Whether reports of some can change anything; see :meth:`partial_update`."""
        return self._balancer.partial_updates

    @property
    def hidden_s(self) -> float:
        """How much of a worker's own side of an exchange costs no time, for all wait for a link meanwhile; seconds an
        iteration."""
        return min(self._waits)

    def shares(self, iteration: int) -> tuple[int, ...]:
        """The split in force in ``iteration``."""
        first, shares = self._splits[-1]
        if first <= iteration:  # nearly always, and asked in every iteration
            return shares
        return next(shares for first, shares in reversed(self._splits) if first <= iteration)

    def fingerprint(self) -> float:
        """Checksum of the newest split, exact in a float64; it goes into every report."""
        if self._fingerprint[0] is not self.newest:
            value = 0
            for share in self.newest:
                value = (value * 1_000_003 + share) % (2**48)
            self._fingerprint = self.newest, float(value)
        return self._fingerprint[1]

    def decide(self, iteration: int, launched: int, table: ReportTable) -> Decision:
        """Take in one report of each member.

        Args:
            iteration: the one that has just ended.
            launched: the one at whose end the reports were given.
            table: the reports.

        Raises:
            ConflictError: another rank has decided another split before.
        """
        self._compare(table.column("split"))
        if (hidden_s := table.hidden_s()) is not None:
            self._waits.append(hidden_s)
        table = table.without(self.hidden_s)
        self._held = still_held(self._held, self.newest, table.column("memory"))
        split, complaints = self._take_in(iteration, table)
        predicted_per_s, shares = self._settled
        self._settled = self._predicted_per_s, self.newest
        sudden = _sudden(predicted_per_s, self._predicted_per_s)
        gap = self._spacing.gap(table, changed=self.newest is not shares, sudden=sudden)
        return Decision(split, complaints, launched + gap.least, launched + gap.far, launched + gap.most)

    def partial_update(self, iteration: int, early: Mapping[int, Report]) -> PartialUpdate:
        """Take in early reports: of those workers alone whose speed has left their forecast. The last reports of the
        others stand, and the time at which the next reports of all workers are due does not change.

        Args:
            iteration: the one that has just ended.
            early: position of a member → its report.

        Raises:
            ConflictError: another rank has decided another split before.
        """
        table = self._referee.standing(self._members)
        table.column("split")[:] = self.fingerprint()
        table.rows[list(early)] = ReportTable(list(early.values())).without(self.hidden_s).rows
        self._compare(table.column("split"))
        return PartialUpdate(*self._take_in(iteration, table))

    def _take_in(self, iteration: int, table: ReportTable) -> tuple[SplitRecord | None, tuple[Complaint, ...]]:
        verdict = self._referee.judge(self._members, table, iteration=iteration)
        self._believe(table, verdict)
        return self._split(iteration, verdict), verdict.complaints

    def _believe(self, table: ReportTable, verdict: Verdict) -> None:
        """Take over the forecasts that there are; a worker's speed replaces one that is out of all proportion."""
        speeds, predicted, doubts = verdict.speeds_per_s, table.column("predicted_per_s"), table.column("doubt")
        sound = (predicted >= speeds / ABSURD_FACTOR) & (predicted <= speeds * ABSURD_FACTOR)
        sure = sound & (doubts >= 0.0) & (doubts < math.inf)
        news = verdict.fresh & ~np.isnan(predicted)
        self._predicted_per_s = np.where(news, np.where(sound, predicted, speeds), self._predicted_per_s)
        self._doubts = np.where(news, np.where(sure, doubts, 0.0), self._doubts)

    def _split(self, iteration: int, verdict: Verdict) -> SplitRecord | None:
        view = self._view(iteration, verdict.observed, self.newest)
        answer = self._balancer.split(view)
        if answer.shares == self.newest:
            return None
        first = iteration + 1 + self._lookahead
        self._splits.append((first, answer.shares))
        self.newest = answer.shares
        return SplitRecord(
            decided_at=iteration,
            iteration=first,
            shares=answer.shares,
            speeds_per_s=tuple(np.where(verdict.speeds_per_s > 0, verdict.speeds_per_s, math.nan).tolist()),
            predicted_per_s=view.predicted_per_s,
            reason=answer.reason,
        )

    def _view(self, iteration: int, observed: Sequence[Observation | None], shares: tuple[int, ...]) -> BalanceView:
        return BalanceView(
            iteration=iteration,
            global_batch=self._global_batch,
            members=self._members,
            shares=shares,
            observed=observed,
            predicted_per_s=tuple(self._predicted_per_s.tolist()),
            limits=not_growing(self._limits, self._held),
            doubts=tuple(self._doubts.tolist()),
        )

    def _even(self) -> tuple[int, ...]:
        return proportional([1.0] * len(self._members), self._global_batch, self._limits)

    def _compare(self, fingerprints: Column) -> None:
        if (fingerprints != fingerprints[0]).any():
            odd = [self._members[place] for place in np.flatnonzero(fingerprints != fingerprints[0])]
            raise ConflictError(
                f"rank {', '.join(map(str, odd))} decided another split than rank {self._members[0]}: a balancer or "
                f"predictor gave different answers to the same view; it must be deterministic (see "
                f"uneven.testing.contracts)"
            )

    def successor(
        self, members: tuple[int, ...], limits: Limits, global_batch: int | None = None,
        kinds: Mapping[int, str] | None = None,
    ) -> Decider:  # fmt: skip
        """The decider of other members, with what was learnt of those who stay.

        A newcomer gets the mean share of those on machines of its kind, else that of all, and counts as unknown until
        it has reported.

        Args:
            members: ranks, ascending.
            limits: of each of them.
            global_batch: theirs, in samples; None where it stays.
            kinds: rank → kind of its machine, of those of whom it is known.
        """
        total = self._global_batch if global_batch is None else global_batch
        heir = Decider(
            self._balancer, members, limits, global_batch=total, lookahead=self._lookahead, budget=self._budget
        )
        state, known = self.state_dict(), {rank: place for place, rank in enumerate(self._members)}
        places = [known.get(rank) for rank in members]
        shares = heir.newest
        if self._balancer.adapts:
            shares = proportional([self._weight(rank, members, kinds or {}) for rank in members], total, limits)
        heir.load_state_dict(
            state
            | {
                "shares": shares,
                "predicted_per_s": [None if place is None else state["predicted_per_s"][place] for place in places],
                "doubts": [0.0 if place is None else state["doubts"][place] for place in places],
                "held": [0 if place is None else state["held"][place] for place in places],
            }
        )
        return heir

    def _weight(self, rank: int, members: tuple[int, ...], kinds: Mapping[int, str]) -> float:
        """By which a member gets its first share: what it had, or what others of its kind have; NaN for the mean."""
        shares = dict(zip(self._members, self.newest, strict=True))
        if rank in shares:
            return float(shares[rank])
        alike = [shares[one] for one in members if one in shares and rank in kinds and kinds.get(one) == kinds[rank]]
        return sum(alike) / len(alike) if alike else math.nan

    def state_dict(self) -> dict[str, Any]:
        """Shares, forecasts, referee and balancer, as plain data."""
        return {
            "kind": self._kind(),
            "shares": list(self.newest),
            "predicted_per_s": [None if math.isnan(speed) else speed for speed in self._predicted_per_s.tolist()],
            "doubts": self._doubts.tolist(),
            "held": self._held.tolist(),
            "waits": list(self._waits),
            "referee": self._referee.state_dict(),
            "balancer": self._balancer.state_dict(),
        }

    def check(self, state: dict[str, Any]) -> bool:
        """Whether :meth:`load_state_dict` would go on; nothing is changed. It is then decided once, on a copy.

        Raises:
            ValueError: a field has another shape (:class:`~uneven.core.plain.Misfit`), or the balancer's split is none.
        """
        trial = copy.deepcopy(self)
        if not trial.load_state_dict(state):
            return False
        trial.partial_update(0, {})
        shares = trial.newest
        if len(shares) != len(self._members) or sum(shares) != self._global_batch or min(shares) < 0:
            raise ValueError(f"the balancer makes {shares} of it, which is no split of {self._global_batch}")
        return True

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on where another run stopped; one with other workers, batch, limits or balancer starts afresh.

        Returns:
            Whether it goes on.
        """
        saved = read(DeciderState, state)
        shares, limits = tuple(saved["shares"]), self._limits
        fits = len(shares) == len(self._members) and sum(shares) == self._global_batch
        fits = fits and all(map(le, limits.lower, shares)) and all(map(le, shares, limits.upper))
        fits = fits and saved["kind"] == self._kind()
        if fits:
            self.newest = shares
            predicted = [math.nan if speed is None else speed for speed in saved["predicted_per_s"]]
            self._predicted_per_s, self._doubts = np.array(predicted), np.array(saved["doubts"])
            self._held = np.array(saved.get("held", [0] * len(shares)), np.int64)
            self._waits.extend(saved.get("waits", [0.0] * _AGREE))
            with inside("referee"):
                self._referee.load_state_dict(state["referee"])
            with inside("balancer"):
                self._balancer.load_state_dict(saved["balancer"])
        self._settled = self._predicted_per_s, self.newest
        self._splits = deque([(0, self.newest)], maxlen=_REMEMBERED)
        return fits

    def _kind(self) -> list[str]:
        """Whose state it is: what one balancer learnt says nothing to another."""
        return [describe(self._balancer), self._balancer.predictor]


def _rehearse(balancer: Balancer, view: BalanceView) -> None:
    """Decide once on a copy, so that what Python does at first use is not done between two steps of the training."""
    ones = (1.0,) * len(view.members)
    copy.deepcopy(balancer).split(replace(view, predicted_per_s=ones, doubts=ones))


def _sudden(before: Column, now: Column) -> bool:
    """Whether some speed has become half as much again, or as little; not where nothing was known before."""
    return bool(((now > _SUDDEN * before) | (before > _SUDDEN * now)).any())
