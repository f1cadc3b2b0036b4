"""All errors that uneven raises deliberately.

::

    UnevenError
    ├── ConfigError            a setting is wrong, before any training starts     (also a ValueError)
    │   ├── UnknownNameError   a balancer, policy, key or flag that does not exist
    │   └── ConflictError      two sources, or two ranks, have different settings
    ├── DataError              the data set or the loader does not support a request (also a ValueError)
    ├── CheckpointError        a state does not belong to this run
    ├── JournalError           a run directory cannot be read or written
    └── TrainingError          something failed during training                   (also a RuntimeError)
        ├── NonFiniteError     a NaN or an infinity in a loss or a gradient
        ├── PeerError          a worker did not take part in an exchange
        └── LaunchError        a worker died or could not be started

A message names the object, the value and a remedy. Warnings are :class:`UnevenWarning`, to be filtered by
``warnings.simplefilter("error", uneven.UnevenWarning)``.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


class UnevenWarning(RuntimeWarning):
    """The root of all warnings of uneven: the run continues, but something needs attention."""


class UnevenDeprecationWarning(UnevenWarning, FutureWarning):
    """A name or an argument is deprecated; the warning names its replacement and the version that removes it."""


class UnevenError(Exception):
    """The root of all errors that uneven raises deliberately."""


class ConfigError(UnevenError, ValueError):
    """A setting is wrong; raised before any training starts."""


class UnknownNameError(ConfigError):
    """A name does not exist; the message offers the nearest one.

    Args:
        what: kind of name, in the user's words ("balancer", "key in uneven.toml").
        name: the requested name.
        known: all accepted names.
        shown: how the message lists some of them ("rnn (costly)"); by default unchanged.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], shown: Mapping[str, str] | None = None) -> None:
        names = sorted(known)
        listed = [(shown or {}).get(one, one) for one in names]
        self.name = name
        self.nearest = nearest(name, names)
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        super().__init__(f"unknown {what} {name!r}{hint} (known: {', '.join(listed) or 'none'})")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name of ``known`` that is most similar to ``name``; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), None)


def install_hint(what: str) -> str:
    """Return the command that installs ``what``, an extra (``.[ray]``) or ``./benchmarks``."""
    return f"pip install '{what}' in the folder of uneven's source"


def reason(error: BaseException) -> str:
    """Return the text of ``error`` without the path that Python adds, because our message has the path already."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def access(doing: str, kind: type[UnevenError] = ConfigError) -> Iterator[None]:
    """Turn errors of the file system (no permission, no space, a name too long) into errors of uneven::

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
        # For a path with NUL, Python raises a ValueError instead of an OSError.
        if isinstance(error, UnevenError) or "null" not in str(error):
            raise
        raise kind(f"cannot {doing}: a name of a file cannot hold the character NUL") from error


class ConflictError(ConfigError):
    """Two sources, or two ranks, have different settings."""


class DataError(UnevenError, ValueError):
    """The data set or the loader does not support a request."""


class CheckpointError(UnevenError):
    """A state does not belong to this run, or was written by another schema."""


class JournalError(UnevenError):
    """A run directory cannot be read or written."""


class TrainingError(UnevenError, RuntimeError):
    """Something failed during training."""


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
    """A worker did not take part in an exchange; the message names it."""


class LaunchError(TrainingError):
    """A worker died or could not be started.

    Attributes:
        exit_code: exit code for the launcher.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
