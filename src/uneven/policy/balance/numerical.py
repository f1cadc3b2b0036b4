"""LB-BSP on GPUs: samples move in steps from the straggler to the leader."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.balance._intake import Flags, Intake, IntakeState, ReportColumns, Window, WindowState
from uneven.policy.balance.balancer import Balancer, standing
from uneven.policy.balance.bounds import Bounds, device_bounds, whole_numbers, with_memory
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.actions import Split
from uneven.policy.core.exact import Floats, Wholes
from uneven.policy.core.plain import Amount, Count, Misfit, Several, inside, read
from uneven.policy.core.views import BalanceView

FAST, FINE, SETTLED = "fast approach", "fine-tune", "settled"  # the phases, as in the reason of every split
# Δ0 relative to the mean share. The specification's default, 0.05, took longer for all simulated workers except equal
# and linear ones (``uneven bench balancers``), so this one is ours.
FIRST_STEP = 0.3
WINDOW, LONGEST = 5, 40  # W0 and Wmax, iterations; these and the next two are the specification's defaults
REST = 0.03  # ε: gap between straggler and leader, relative to the straggler's time, that is accepted
RESTART = 0.15  # θ: gap that, in two windows in a row, ends the fine-tuning


class _NumericalState(TypedDict):
    members: list[int]
    phase: Literal["fast approach", "fine-tune", "settled"]
    step: Several
    window: Several
    givers: list[int]
    takers: list[int]
    best: tuple[Amount, list[Count]] | None
    wide: Count
    watched: WindowState
    intake: IntakeState


class Numerical(Balancer):
    """Moves samples from the slowest to the fastest device in shrinking steps, for any cost curve (SoCC 2020).

    ::

        watch a window ─► straggler: most time, leader: least among those with memory left
              ▲              │
              │              ├─ gap below ε ───────────────► hold
              │              ├─ same roles ────────────────► move a step        fast approach
              │              └─ roles reversed ────────────► half the step, twice the window, move    fine-tune
              └──────────────┴─ reversed at a step of one ─► the best split so far                    settled

    A gap above θ twice in a row while fine-tuning or settled restarts it from the current shares. Time includes a
    worker's own communication but not waiting for others. The window, the roles, the two phases, the shrinking step and
    the growing window are the paper's. The procedure is our specification's reading of it (§1.8); no number is from the
    paper. No worker goes below its saturation point, because fewer samples gain nothing, or above its memory limit.

    Args:
        step: first step relative to the mean share, above 0, at most 1.
        window, longest: iterations to watch at first, at least 1, and at most.
        rest: ε, at least 0, below 1.
        restart: θ, above ``rest``.
        pairs: number of pairs that move at a time, k-th fastest with k-th slowest; the paper has one.
        saturation: x_s of each rank, samples, from a profile (:mod:`uneven.policy.balance.profiled`); none is 1.
        most: x_o of each rank, samples, from a profile; without it only the view's limits hold.
    """

    predictor = "last"

    def __init__(
        self,
        *,
        step: float = FIRST_STEP,
        window: int = WINDOW,
        longest: int = LONGEST,
        rest: float = REST,
        restart: float = RESTART,
        pairs: int = 1,
        saturation: Sequence[int] | int = (),
        most: Sequence[int] | int = (),
    ) -> None:
        if not (0.0 < step <= 1.0 and 0.0 <= rest < restart < 1.0):
            raise ConfigError(
                f"numerical: step = {step!r} must be above 0 and at most 1, and 0 ≤ rest = {rest!r} < restart = "
                f"{restart!r} < 1"
            )
        if not (1 <= window <= longest and pairs >= 1):
            raise ConfigError(
                f"numerical: 1 ≤ window = {window!r} ≤ longest = {longest!r} are iterations, and pairs = {pairs!r} "
                f"must be at least 1"
            )
        self._first_step = step
        self._first_window = window
        self._longest = longest
        self._rest = rest
        self._restart = restart
        self._pairs = pairs
        self._saturation = whole_numbers("numerical: saturation", saturation)
        self._most = whole_numbers("numerical: most", most)
        self._intake = Intake()
        self._watched = Window()
        self._members: tuple[int, ...] = ()
        self._begin(1)

    def _begin(self, step: int) -> None:
        self._phase, self._step, self._window = FAST, step, self._first_window
        self._givers: frozenset[int] = frozenset()  # ranks of the last move
        self._takers: frozenset[int] = frozenset()
        self._best: tuple[float, tuple[int, ...]] | None = None
        self._wide = 0  # windows in a row with a gap above θ

    def split(self, view: BalanceView) -> Split:
        view = with_memory(view, self._most)
        reports = self._intake.take(view)
        present = standing(view)
        if view.members != self._members or present != view.shares:
            self._members = view.members
            self._begin(max(1, round(self._first_step * view.global_batch / len(view.members))))
            self._watched.clear()
        if present != view.shares:
            return self._told(present, "starting from the nearest split that fits")
        self._watched.add(reports)
        if not self._watched.full(self._window):
            return self._told(present, f"watching, {self._watched.watched()} of {self._window} iterations")
        times_s = self._watched.median_s()
        self._watched.clear()
        return self._decide(view, reports, times_s)

    def _decide(self, view: BalanceView, reports: ReportColumns, times_s: Floats) -> Split:
        shares = np.array(view.shares, np.int64)
        bounds = device_bounds(view, self._saturation)
        can_give, can_take = bounds.can_give(shares), bounds.can_take(shares, reports.memory)
        slowest_s = float(times_s.max())
        # The best split is the target of a reversal at a step of one; splits of another batch size do not count.
        if self._best is None or slowest_s < self._best[0] or sum(self._best[1]) != view.global_batch:
            self._best = slowest_s, view.shares
        gap = _gap(times_s, can_give, can_take)
        if self._phase != FAST and self._changed_for_good(gap):
            self._begin(max(1, round(self._first_step * view.global_batch / len(view.members))))
            return self._told(view.shares, f"restart: times {gap:.0%} apart in two windows in a row")
        if self._phase == SETTLED:
            return self._told(view.shares, f"times within {gap:.1%}")
        pairs = _pairs(times_s, can_give, can_take, self._rest, self._pairs)
        if not pairs:
            return self._told(view.shares, f"nothing to gain: times within {gap:.1%}")
        leader, straggler = view.members[pairs[0].leader], view.members[pairs[0].straggler]
        # Reversed roles mean that the last step was too large.
        if leader in self._givers or straggler in self._takers:
            if self._step == 1:
                self._phase = SETTLED
                return self._told(self._best[1], f"back to the best split seen, {1e3 * self._best[0]:.4g} ms")
            self._phase = FINE
            self._step, self._window = max(1, self._step // 2), min(self._longest, 2 * self._window)
        return self._move(view, shares, bounds, pairs)

    def _changed_for_good(self, gap: float) -> bool:
        self._wide = self._wide + 1 if gap > self._restart else 0
        return self._wide >= 2

    def _move(self, view: BalanceView, shares: Wholes, bounds: Bounds, pairs: "list[_Pair]") -> Split:
        for leader, straggler in pairs:
            # Limits may leave less than a step.
            n = int(min(self._step, shares[straggler] - bounds.least[straggler], bounds.most[leader] - shares[leader]))
            shares[straggler] -= n
            shares[leader] += n
        self._takers = frozenset(view.members[pair.leader] for pair in pairs)
        self._givers = frozenset(view.members[pair.straggler] for pair in pairs)
        first = pairs[0]
        n = abs(int(shares[first.leader]) - view.shares[first.leader])
        others = f" and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
        words = f"{n} samples from rank {view.members[first.straggler]} to rank {view.members[first.leader]}{others}"
        return self._told(tuple(shares.tolist()), words)

    def _told(self, shares: tuple[int, ...], words: str) -> Split:
        return Split(shares, f"numerical, {self._phase}: {words}")

    def profiled(self, profiles: Mapping[int, Profile]) -> None:
        if not self._saturation and tuple(sorted(profiles)) == tuple(range(len(profiles))):
            self._saturation = tuple(profiles[rank].saturation for rank in range(len(profiles)))

    def state_dict(self) -> dict[str, Any]:
        return {
            "members": list(self._members),
            "phase": self._phase,
            "step": self._step,
            "window": self._window,
            "givers": sorted(self._givers),
            "takers": sorted(self._takers),
            "best": None if self._best is None else [self._best[0], list(self._best[1])],
            "wide": self._wide,
            "watched": self._watched.state_dict(),
            "intake": self._intake.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(_NumericalState, state)
        best = saved["best"]
        if best is not None and len(best[1]) != len(saved["members"]):
            raise Misfit(best[1], f"a share of each of {len(saved['members'])} members", "best[1]")
        with inside("watched"):
            self._watched.load_state_dict(state["watched"])
        self._members = tuple(saved["members"])
        self._phase, self._step, self._window = saved["phase"], saved["step"], saved["window"]
        self._givers, self._takers = frozenset(saved["givers"]), frozenset(saved["takers"])
        self._best = None if best is None else (best[0], tuple(best[1]))
        self._wide = saved["wide"]
        self._intake.load_state_dict(state["intake"])


class _Pair(NamedTuple):
    leader: int  # places among the members
    straggler: int


def _gap(times_s: Floats, can_give: Flags, can_take: Flags) -> float:
    # Only workers that can still move count; the others would ask for a restart forever.
    if not (can_give.any() and can_take.any()):
        return 0.0
    most, least = float(times_s[can_give].max()), float(times_s[can_take].min())
    return max(0.0, (most - least) / most)


def _pairs(times_s: Floats, can_give: Flags, can_take: Flags, rest: float, pairs: int) -> list[_Pair]:
    """Pair the k-th fastest that can take with the k-th slowest that can give, while their times differ by ``rest``."""
    order = np.argsort(times_s, kind="stable")
    found: list[_Pair] = []
    for leader, straggler in zip(order[can_take[order]], order[::-1][can_give[order[::-1]]], strict=False):
        most = times_s[straggler]
        if len(found) == pairs or not (most - times_s[leader] >= rest * most and most > times_s[leader]):
            break
        found.append(_Pair(int(leader), int(straggler)))
    return found
