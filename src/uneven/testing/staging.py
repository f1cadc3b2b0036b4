"""Send the tensors of a CPU the way that those of a GPU take: through copies in host memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from uneven.run.lines import staging


@contextmanager
def staging_forced() -> Iterator[None]:
    """Copy gradients, and tensors on lines, in the exchanges of sessions that begin inside, on all ranks.

    Example::

        with staging_forced():
            session = uneven.Session()
    """
    before, staging.forced = staging.forced, True
    try:
        yield
    finally:
        staging.forced = before
