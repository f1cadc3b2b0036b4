"""The destinations of the workers' output, with torchrun's options. Imports no torch."""

import re
from dataclasses import dataclass
from pathlib import Path

from uneven.errors import ConfigError

_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*", re.ASCII)
_RANKS = re.compile(r"\d+(,\d+)*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutput:
    """The streams written to files and those shown; invalid values raise ConfigError.

    A stream is 0 for none, 1 for stdout, 2 for stderr, 3 for both; for all workers ("3") or by local rank ("0:1,1:2";
    other ranks keep both).
    """

    redirects: str = "0"  # into files instead of the console
    tee: str = "0"  # into files and to the console, each line with its rank
    ranks: str = ""  # local ranks shown, as in "0,2"; empty is all. Files get the output of all ranks.
    directory: str = ""  # of the files; empty is ``logs`` in the run directory

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
        """True if any option differs from its default."""
        return self != WorkerOutput()

    @property
    def in_files(self) -> bool:
        return any(streams for text in (self.redirects, self.tee) for streams in _by_rank(text, 1).values())

    def streams(self, count: int) -> tuple[dict[int, int], dict[int, int]]:
        """Return local rank → streams (0 to 3) into files only, and into files and console, of ``count`` workers."""
        usual = dict.fromkeys(range(count), 0)
        return usual | _by_rank(self.redirects, count), usual | _by_rank(self.tee, count)

    def check(self, count: int) -> None:
        """Raise ConfigError unless all local ranks are below ``count``."""
        named = {
            "--redirects": _by_rank(self.redirects, 0),
            "--tee": _by_rank(self.tee, 0),
            "--log-rank": self.shown or (),
        }
        for option, ranks in named.items():
            if ranks and max(ranks) >= count:
                raise ConfigError(
                    f"{option} names local rank {max(ranks)}, but this machine has {count} workers: count from 0"
                )

    @property
    def shown(self) -> set[int] | None:
        """The local ranks whose output is shown; None shows all."""
        return {int(rank) for rank in self.ranks.split(",")} if self.ranks else None

    def folder(self, run_directory: Path | None) -> Path:
        """Return the folder of the files; raise ConfigError if `directory` and the run name none."""
        if self.directory:
            return Path(self.directory)
        if run_directory is None:
            raise ConfigError("--redirects and --tee need a folder: name one with --log-dir")
        return run_directory / "logs"


def _by_rank(text: str, count: int) -> dict[int, int]:
    """Return local rank → streams; a single value applies to the first ``count`` ranks."""
    if ":" not in text:
        return dict.fromkeys(range(count), int(text))
    pairs = (part.split(":") for part in text.split(","))
    return {int(rank): int(streams) for rank, streams in pairs}
