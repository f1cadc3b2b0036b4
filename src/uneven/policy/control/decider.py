"""From all reports to the split of the batch and the time of the next reports."""

import copy
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import le
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

import numpy as np

from uneven.errors import ConflictError
from uneven.policy.balance.balancer import Balancer
from uneven.policy.balance.bounds import not_growing, still_held
from uneven.policy.balance.profiled import Profile
from uneven.policy.control.referee import ABSURD_FACTOR, Complaint, Referee, RefereeState, Verdict
from uneven.policy.control.report_interval import Spacing
from uneven.policy.control.reporter import Report
from uneven.policy.control.table import Column, ReportTable
from uneven.policy.core.apportion import proportional
from uneven.policy.core.plain import Along, Amount, Count, inside, read
from uneven.policy.core.records import SplitRecord
from uneven.policy.core.registry import describe
from uneven.policy.core.views import BalanceView, Limits, Observation

_REMEMBERED = 1024  # splits kept; far more than can be decided within any look-ahead
_SUDDEN = 1.5  # factor between two decisions from which a change of the forecast is not noise [default]
_AGREE = 3  # consecutive reports in which a wait must occur before it is attributed to the link [default]
_PROFILE_DOUBT = 0.05  # relative, of a speed in a profile: a few steps, near the first share [default]


class DeciderState(TypedDict):
    """The checkpoint of a :class:`Decider`."""

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
    """The result of one round of reports."""

    split: SplitRecord | None  # the new split, or None if the old one stays
    complaints: tuple[Complaint, ...]  # one for each rejected report
    soonest: int  # from this iteration's end on a worker may call for reports early …
    far: int  # … and from this one's if its speed is far off its forecast
    next: int  # at this iteration's end the next reports are due if no worker calls


class PartialUpdate(NamedTuple):
    """The result of some workers' reports, see :class:`Decision`."""

    split: SplitRecord | None
    complaints: tuple[Complaint, ...]


class Decider:
    """The split of the batch; equal reports lead to equal splits on every rank.

    Args:
        members: ranks, ascending; position i of limits, reports and shares belongs to the i-th.
        lookahead: number of iterations for which the loaders draw indices ahead of the loop.
        budget: part of the iteration time that measuring and deciding may cost.
        profiles: rank → profile; until it reports, a worker counts as fast as in its profile.
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
        self.lookahead = lookahead
        self._budget = budget
        self._predicted_per_s = np.full(len(members), math.nan)
        self._doubts = np.zeros(len(members))
        self._held = np.zeros(len(members), np.int64)  # shares of members whose memory is full
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
        self._settled = self._predicted_per_s, self.newest  # as of the last complete round of reports
        self._reason = first.reason

    def _foresee(self, profiles: Mapping[int, Profile]) -> None:
        even = zip(self._members, self._even(), strict=True)
        self._predicted_per_s = np.array([share / profiles[rank].time_s(share) for rank, share in even])
        self._doubts = np.full(len(self._members), _PROFILE_DOUBT)

    def first(self) -> SplitRecord:
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
        return self._members

    @property
    def adapts(self) -> bool:
        return self._balancer.adapts and len(self._members) > 1

    @property
    def partial_updates(self) -> bool:
        """True if some workers' reports can change anything, see :meth:`partial_update`."""
        return self._balancer.partial_updates

    @property
    def hidden_s(self) -> float:
        """Seconds an iteration of a worker's own side of an exchange that cost no time, because all wait for a link
        anyway."""
        # The least of several reports: a single wait may be chance.
        return min(self._waits)

    def shares(self, iteration: int) -> tuple[int, ...]:
        first, shares = self._splits[-1]
        if first <= iteration:  # the usual case, in every iteration
            return shares
        return next(shares for first, shares in reversed(self._splits) if first <= iteration)

    def fingerprint(self) -> float:
        """Return a checksum of the newest split; each report contains it."""
        if self._fingerprint[0] is not self.newest:
            value = 0
            for share in self.newest:
                # Below 2^48, so exact in a float64 column.
                value = (value * 1_000_003 + share) % (2**48)
            self._fingerprint = self.newest, float(value)
        return self._fingerprint[1]

    def decide(self, iteration: int, launched: int, table: ReportTable) -> Decision:
        """Decide by one report of each member, after ``iteration``; the reports were given at the end of ``launched``.

        Raises:
            ConflictError: another rank has decided a different split before.
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
        """Decide by early reports, position of a member → report; the others' last reports are reused.

        The time of the next reports of all workers does not change.

        Raises:
            ConflictError: another rank has decided a different split before.
        """
        table = self._referee.standing(self._members)
        # Old reports have an old fingerprint; only the early ones are compared.
        table.column("split")[:] = self.fingerprint()
        table.rows[list(early)] = ReportTable(list(early.values())).without(self.hidden_s).rows
        self._compare(table.column("split"))
        return PartialUpdate(*self._take_in(iteration, table))

    def _take_in(self, iteration: int, table: ReportTable) -> tuple[SplitRecord | None, tuple[Complaint, ...]]:
        verdict = self._referee.judge(self._members, table, iteration=iteration)
        self._believe(table, verdict)
        return self._split(iteration, verdict), verdict.complaints

    def _believe(self, table: ReportTable, verdict: Verdict) -> None:
        # A forecast out of all proportion is replaced by the measured speed.
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
        # Loaders have already drawn indices for the iterations in between.
        first = iteration + 1 + self.lookahead
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
                f"rank {', '.join(map(str, odd))} decided another split than rank {self._members[0]}: make the "
                "balancer and the predictor deterministic (see uneven.testing.contracts)"
            )

    def successor(
        self,
        members: tuple[int, ...],
        limits: Limits,
        global_batch: int | None = None,
        kinds: Mapping[int, str] | None = None,
    ) -> "Decider":
        """Return the decider of other members, with the state of those that stay.

        A newcomer gets the mean share of its kind of machine (``kinds``: rank → kind, as far as known), otherwise of
        all, and counts as unknown until it has reported. A ``global_batch`` of None is unchanged.
        """
        total = self._global_batch if global_batch is None else global_batch
        heir = Decider(
            self._balancer, members, limits, global_batch=total, lookahead=self.lookahead, budget=self._budget
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
        """Return the weight of a member's first share: its old share, or that of its kind; NaN for the mean."""
        shares = dict(zip(self._members, self.newest, strict=True))
        if rank in shares:
            return float(shares[rank])
        alike = [shares[one] for one in members if one in shares and rank in kinds and kinds.get(one) == kinds[rank]]
        return sum(alike) / len(alike) if alike else math.nan

    def state_dict(self) -> dict[str, Any]:
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
        """Return whether :meth:`load_state_dict` would resume, without changes; raise ``ValueError`` for a damaged
        state."""
        trial = copy.deepcopy(self)
        if not trial.load_state_dict(state):
            return False
        # Decide once on a copy: a state can have the right shape and still make the balancer fail.
        trial.partial_update(0, {})
        shares = trial.newest
        if len(shares) != len(self._members) or sum(shares) != self._global_batch or min(shares) < 0:
            raise ValueError(f"the balancer returned {shares}, which is not a split of {self._global_batch}")
        return True

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Resume if workers, batch, limits and balancer are the same, otherwise start from scratch; return whether it
        resumed."""
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
        # What one balancer has learned is useless to another.
        return [describe(self._balancer), self._balancer.predictor]


def _rehearse(balancer: Balancer, view: BalanceView) -> None:
    # Decide once on a copy, so that Python's work at first use does not fall between two training steps.
    ones = (1.0,) * len(view.members)
    copy.deepcopy(balancer).split(replace(view, predicted_per_s=ones, doubts=ones))


def _sudden(before: Column, now: Column) -> bool:
    # NaN, a speed unknown before, compares False.
    return bool(((now > _SUDDEN * before) | (before > _SUDDEN * now)).any())
