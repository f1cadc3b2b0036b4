"""Everything that uneven raises on purpose.

::

    UnevenError
    ├── ConfigError            a setting is wrong, before any training starts     (also a ValueError)
    │   ├── UnknownNameError   a balancer, policy, key or flag that does not exist
    │   └── ConflictError      two places, or two ranks, ask for different things
    ├── DataError              the data set or the loader cannot do what was asked (also a ValueError)
    ├── CheckpointError        a state does not belong to this run
    ├── JournalError           a run directory cannot be read or written
    └── TrainingError          something went wrong while training                 (also a RuntimeError)
        ├── NonFiniteError     a NaN or an infinity in a loss or a gradient
        ├── PeerError          somebody did not take part in an exchange
        └── LaunchError        a worker died or could not be started

A message names the thing, the value and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


class UnevenError(Exception):
    """Root of the tree; catch it to catch everything that uneven raises on purpose."""


class ConfigError(UnevenError, ValueError):
    """A setting is wrong. Raised before any training starts."""


class UnknownNameError(ConfigError):
    """A name that does not exist; the message offers the nearest one that does.

    Args:
        what: kind of thing, in the user's words ("balancer", "key in uneven.toml").
        name: what was asked for.
        known: every name that would have been accepted.
        shown: how the list of these shows some of them ("rnn (costly)"); by default as they are.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], shown: Mapping[str, str] | None = None) -> None:
        names = sorted(known)
        listed = [(shown or {}).get(one, one) for one in names]
        self.name, self.nearest = name, nearest(name, names)
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        super().__init__(f"unknown {what} {name!r}{hint} (known: {', '.join(listed) or 'none'})")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that resembles this one most; None if none of them does."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), None)


def install_hint(what: str) -> str:
    """Name the command that installs an extra (``.[ray]``) or ``./benchmarks``. No package index has uneven."""
    return f"pip install '{what}' in the folder of uneven's source"


def reason(error: BaseException) -> str:
    """Return the text of an error without the path that Python adds to it, because the message has the path already."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def access(doing: str, kind: type[UnevenError] = ConfigError) -> Iterator[None]:
    """Inside, what a file system refuses (no permission, no room, too long a name) is an error of ours::

        with access(f"read {path}"):
            text = path.read_text()

    Args:
        doing: completes "cannot …".
        kind: of the error.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"cannot {doing}: {reason(error)}") from error
    except ValueError as error:
        if isinstance(error, UnevenError) or "null" not in str(error):
            raise
        raise kind(f"cannot {doing}: a name of a file cannot hold the character NUL") from error


class ConflictError(ConfigError):
    """Two places, or two ranks, ask for different things."""


class DataError(UnevenError, ValueError):
    """The data set or the loader cannot do what was asked."""


class CheckpointError(UnevenError):
    """A state does not belong to this run, or was written by another schema."""


class JournalError(UnevenError):
    """A run directory cannot be read or written."""


class TrainingError(UnevenError, RuntimeError):
    """Something went wrong while training."""


class NonFiniteError(TrainingError):
    """A NaN or an infinity appeared in a loss or a gradient.

    Attributes:
        ranks: the ranks in which it appeared first.
        iteration: the iteration in which it appeared.
    """

    def __init__(self, what: str, ranks: tuple[int, ...], iteration: int) -> None:
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        super().__init__(
            f"non-finite {what} on {who} in iteration {iteration}: lower the learning rate, clip the "
            f"gradients, or look at that rank's batch"
        )
        self.ranks = ranks
        self.iteration = iteration


class PeerError(TrainingError):
    """Somebody did not take part in an exchange; the message says who was missing."""


class LaunchError(TrainingError):
    """A worker died or could not be started.

    Attributes:
        exit_code: what the launcher should exit with.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
