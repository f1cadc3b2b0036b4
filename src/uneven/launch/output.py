"""What becomes of what workers print, in torchrun's words. Imports no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from uneven.errors import ConfigError

_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*", re.ASCII)
_RANKS = re.compile(r"\d+(,\d+)*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutput:
    """Which streams of which workers go into files, and which are shown.

    A stream is 0 for none, 1 for stdout, 2 for stderr, 3 for both; for all workers, as in "3", or by local rank, as in
    "0:1,1:2", where those that are not named keep both.

    Attributes:
        redirects: streams that go into files instead of the console.
        tee: streams that go into files and to the console, each line with its rank.
        ranks: local ranks whose output is shown, as in "0,2"; empty shows all. Files get everybody's.
        directory: of the files; empty is ``logs`` in the run directory.

    Raises:
        ConfigError: a value has another form.
    """

    redirects: str = "0"
    tee: str = "0"
    ranks: str = ""
    directory: str = ""

    def __post_init__(self) -> None:
        for option, text in (("--redirects", self.redirects), ("--tee", self.tee)):
            if not _STREAMS.fullmatch(text):
                raise ConfigError(
                    f"{option} {text}: give 1 for stdout, 2 for stderr, 3 for both, or streams by local rank, "
                    f"for instance 0:1,1:2"
                )
        if self.ranks and not _RANKS.fullmatch(self.ranks):
            raise ConfigError(f"--log-rank {self.ranks}: give local ranks, for instance 0 or 0,2")

    @property
    def asked(self) -> bool:
        """Whether anything is to be other than usual."""
        return self != WorkerOutput()

    @property
    def in_files(self) -> bool:
        """Whether anything is to be kept in files."""
        return any(streams for text in (self.redirects, self.tee) for streams in _by_rank(text, 1).values())

    def streams(self, count: int) -> tuple[dict[int, int], dict[int, int]]:
        """Local rank → streams into files only, and those into files and to the console; 0 to 3.

        Args:
            count: workers of this machine.
        """
        usual = dict.fromkeys(range(count), 0)
        return usual | _by_rank(self.redirects, count), usual | _by_rank(self.tee, count)

    def check(self, count: int) -> None:
        """See that all local ranks are below ``count``.

        Raises:
            ConfigError: one is not.
        """
        named = {"--redirects": _by_rank(self.redirects, 0), "--tee": _by_rank(self.tee, 0),
                 "--log-rank": self.shown or ()}  # fmt: skip
        for option, ranks in named.items():
            if ranks and max(ranks) >= count:
                raise ConfigError(
                    f"{option} names local rank {max(ranks)}, and this machine has {count} workers: count from 0"
                )

    @property
    def shown(self) -> set[int] | None:
        """Local ranks whose output is shown; None is everybody's."""
        return {int(rank) for rank in self.ranks.split(",")} if self.ranks else None

    def folder(self, run_directory: Path | None) -> Path:
        """Where the files lie.

        Raises:
            ConfigError: nobody says.
        """
        if self.directory:
            return Path(self.directory)
        if run_directory is None:
            raise ConfigError("--redirects and --tee need a folder: name one with --log-dir")
        return run_directory / "logs"


def _by_rank(text: str, count: int) -> dict[int, int]:
    """Local rank → streams; of one value for all, that of the first ``count``."""
    if ":" not in text:
        return dict.fromkeys(range(count), int(text))
    pairs = (part.split(":") for part in text.split(","))
    return {int(rank): int(streams) for rank, streams in pairs}
