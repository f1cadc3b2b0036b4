"""The tracker for TensorBoard: event files for ``tensorboard --logdir``; settings and results are on its page
*hparams*."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.utils.tensorboard.summary import hparams, scalar
from torch.utils.tensorboard.writer import FileWriter

from uneven.errors import access
from uneven.journal.report.pure.points import LoggedValue, Plain
from uneven.journal.report.track.tracker import TrackedRun, Tracker


class TensorBoard(Tracker):
    """A folder with a subfolder for each run; files of an earlier run of the same name are replaced."""

    def __init__(self, where: str) -> None:
        self._folder = Path(where)

    def begin(self, name: str, settings: Mapping[str, Plain], *, group: str = "") -> TrackedRun:
        home = self._folder / name
        with access(f"write to {home} (another folder can be named with --log-to)"):
            home.mkdir(parents=True, exist_ok=True)
            for old in home.glob("events.out.tfevents.*"):
                old.unlink()
            return _EventFile(FileWriter(str(home)), settings)


class _EventFile(TrackedRun):
    def __init__(self, writer: FileWriter, settings: Mapping[str, Plain]) -> None:
        self._writer = writer
        self._settings = {key: "none" if value is None else value for key, value in settings.items()}

    def add(self, points: Sequence[LoggedValue]) -> None:
        for point in points:
            self._writer.add_summary(scalar(point.name, point.value), point.step, point.at_s)
        self._writer.flush()

    def end(self, results: Mapping[str, float]) -> None:
        for summary in hparams(self._settings, dict(results)):
            self._writer.add_summary(summary)
        for name, value in results.items():
            self._writer.add_summary(scalar(name, value))
        self._writer.close()
