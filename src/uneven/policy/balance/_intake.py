"""Selection of the workers' reports that describe the current batch sizes."""

from typing import Annotated, Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from uneven.policy.core.exact import Floats, column
from uneven.policy.core.plain import Along, Amount, Misfit, PerMember, read
from uneven.policy.core.views import BalanceView, Observation

Flags = npt.NDArray[np.bool_]  # one boolean per member, shape (n,)

# Relative difference up to which a report is one of the current size: the last iteration of an epoch may be short
# [default].
_SAME_SIZE = 0.1

_NOTHING = Observation(iteration=-1, samples=0, local_s=0.0)


class ReportColumns(NamedTuple):
    """The newest report of each member as columns of shape (n,); zeros for a member without one."""

    news: Flags  # not there at the last call
    clean: Flags  # news of the current size, except the first one after a change of the size
    size: Floats  # samples of an iteration, mean over the report
    iterations: Floats  # number covered
    local_s: Floats  # data and compute time of an iteration, mean
    transfer_s: Floats  # own communication of an iteration that the backward pass does not hide, mean
    memory: Floats  # use of the memory that a larger batch would fill, 0 … 1; NaN if unknown

    @property
    def seconds(self) -> Floats:
        """Seconds of an iteration, shape (n,), with the worker's own communication and without waiting for others."""
        return self.local_s + self.transfer_s


class IntakeState(TypedDict):
    """The checkpoint of an :class:`Intake`."""

    members: list[int]
    shares: PerMember
    newest: PerMember
    size: PerMember
    owed: Annotated[list[bool], Along("members")]


class Intake:
    """A reader of the reports in one view after the other."""

    def __init__(self) -> None:
        self._members: tuple[int, ...] = ()
        self._shares = np.zeros(0)
        self._newest = np.zeros(0)
        self._size = np.zeros(0)
        self._owed = np.zeros(0, np.bool_)

    def take(self, view: BalanceView) -> ReportColumns:
        """Return the new reports; call it once per view."""
        shares = column(view.shares)
        if view.members != self._members:
            self._meet(view.members, shares)
        rows = [_NOTHING if seen is None else seen for seen in view.observed]
        newest = column([seen.iteration for seen in rows])
        samples = column([seen.samples for seen in rows])
        iterations = column([seen.iterations for seen in rows])
        local_s = column([seen.local_s for seen in rows]) / iterations
        transfer_s = column([seen.transfer_s for seen in rows]) / iterations
        size = samples / iterations
        news = (newest != self._newest) & (samples > 0) & (local_s > 0)
        # The first iteration with a new size is slow (memory is allocated, kernels are selected), so the first report
        # with one is not clean. Until it arrives, reports are of the old size: a split takes effect some iterations
        # later.
        owed = self._owed | (shares != self._shares)
        clean = news & ~owed & (np.abs(size - shares) <= _SAME_SIZE * shares)
        has_come = news & ((size != self._size) | (size == shares))
        self._owed = owed & ~has_come
        self._shares = shares
        self._newest = np.where(news, newest, self._newest)
        self._size = np.where(news, size, self._size)
        memory = column([seen.memory for seen in rows])
        return ReportColumns(news, clean, size, iterations, local_s, transfer_s, memory)

    def _meet(self, members: tuple[int, ...], shares: Floats) -> None:
        places = {rank: place for place, rank in enumerate(self._members)}
        old = [places.get(rank, -1) for rank in members]
        # Keep the state of members that stay; newcomers have no report to skip.
        self._shares = _pick(self._shares, old, shares)
        self._newest = _pick(self._newest, old, np.full(len(old), -1.0))
        self._size = _pick(self._size, old, np.zeros(len(old)))
        self._owed = _pick(self._owed.astype(np.float64), old, np.zeros(len(old))) > 0.0
        self._members = members

    def state_dict(self) -> dict[str, Any]:
        return {
            "members": list(self._members),
            "shares": self._shares.tolist(),
            "newest": self._newest.tolist(),
            "size": self._size.tolist(),
            "owed": self._owed.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(IntakeState, state)
        self._members = tuple(saved["members"])
        self._shares = np.array(saved["shares"], np.float64)
        self._newest = np.array(saved["newest"], np.float64)
        self._size = np.array(saved["size"], np.float64)
        self._owed = np.array(saved["owed"], np.bool_)


def _pick(values: Floats, places: list[int], instead: Floats) -> Floats:
    """Return ``values`` (m,) at ``places``, shape (n,); for a place of −1 the entry of ``instead`` (n,)."""
    if len(values) == 0:
        return instead
    index = np.array(places, np.intp)
    return np.where(index >= 0, values[index], instead)


LEAST_REPORTS = 3  # of each worker in a window: the median of three ignores one random delay [default]
_MOST_REPORTS = 64  # kept while some worker's are missing [default]


class WindowState(TypedDict):
    """The checkpoint of a :class:`Window`."""

    rows: list[list[float | None]]
    iterations: list[Amount]
    counts: list[Amount]


class Window:
    """A number of iterations to observe, so that one random delay does not matter (specification §1.8)."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._rows: list[Floats] = []  # seconds of an iteration, shape (n,) each; NaN without a report
        self._iterations = np.zeros(0)  # covered by each worker's reports, which sum several
        self._counts = np.zeros(0)  # of each worker's reports

    def add(self, reports: ReportColumns) -> None:
        # Other members: their old rows have another length.
        if len(self._iterations) != len(reports.clean):
            self._rows = []
            self._iterations, self._counts = np.zeros(len(reports.clean)), np.zeros(len(reports.clean))
        if not reports.clean.any():
            return
        self._rows = [*self._rows[1 - _MOST_REPORTS :], np.where(reports.clean, reports.seconds, np.nan)]
        self._iterations = self._iterations + np.where(reports.clean, reports.iterations, 0.0)
        self._counts = self._counts + reports.clean

    def watched(self) -> int:
        """Return the iterations covered for the worker with the fewest."""
        return int(self._iterations.min()) if len(self._iterations) else 0

    def full(self, iterations: int) -> bool:
        """Return whether every worker has reported this many iterations, in three reports or more."""
        return self.watched() >= iterations and int(self._counts.min()) >= LEAST_REPORTS

    def median_s(self) -> Floats:
        """Return the median seconds of an iteration of each worker, shape (n,); NaN without reports."""
        ordered = np.sort(np.stack(self._rows), axis=0)  # sorts NaN last
        present = np.count_nonzero(~np.isnan(ordered), axis=0)
        at = np.arange(ordered.shape[1])
        low = ordered[np.maximum(present - 1, 0) // 2, at]
        high = ordered[np.minimum(present // 2, len(ordered) - 1), at]
        middle: Floats = low + (high - low) * 0.5
        return middle

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": [[None if t != t else t for t in row.tolist()] for row in self._rows],
            "iterations": self._iterations.tolist(),
            "counts": self._counts.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(WindowState, state)
        workers = len(saved["iterations"])
        if len(saved["counts"]) != workers or any(len(row) != workers for row in saved["rows"]):
            raise Misfit(saved["rows"], f"rows of {workers}, as many as iterations and counts", "rows")
        if any(saved["counts"]) and not saved["rows"]:
            raise Misfit(saved["rows"], "the reports that counts gives", "rows")
        self._rows = [np.array([np.nan if t is None else t for t in row], np.float64) for row in saved["rows"]]
        self._iterations = np.array(saved["iterations"], np.float64)
        self._counts = np.array(saved["counts"], np.float64)
