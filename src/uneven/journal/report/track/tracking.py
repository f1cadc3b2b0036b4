"""A session's run in experiment trackers: afterwards, or during the run."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from uneven.journal.pure.summary import Summary
from uneven.journal.reader import read
from uneven.journal.report.pure.chart_series import run_data
from uneven.journal.report.pure.points import PointStream, results
from uneven.journal.report.track.tracker import TrackedRun, Tracker
from uneven.policy.core.records import Record


def write(run: Path, tracker: Tracker) -> int:
    """Log a run from its journal; return the number of values. Raises JournalError or ConfigError if that fails."""
    journal = read(run)
    stream = PointStream()
    points = stream.feed(journal.records(), final=True)
    tracked = tracker.begin(journal.run.resolve().name, stream.settings)
    tracked.add(points)
    tracked.end(results(run_data(journal).summary))
    return len(points)


class LiveTracking:
    """A forwarder of a running run's records to trackers."""

    def __init__(self, name: str, trackers: Sequence[Tracker]) -> None:
        self._name = name
        self._trackers = trackers
        self._stream = PointStream()
        self._runs: list[TrackedRun] = []

    def feed(self, records: Iterable[Record], *, final: bool = False) -> None:
        points = self._stream.feed(records, final=final)
        if points and not self._runs:
            self._runs = [one.begin(self._name, self._stream.settings) for one in self._trackers]
        for run in self._runs if points else ():
            run.add(points)

    def rewind(self) -> None:
        """Prepare to receive the journal from its beginning again."""
        # Repeated iterations keep their first values: trackers require ascending steps.
        self._stream = PointStream(after=self._stream.newest)

    def end(self, summary: Summary) -> None:
        """Log the remaining points and the results."""
        self.feed((), final=True)
        for run in self._runs:
            run.end(results(summary))
        self._runs = []
