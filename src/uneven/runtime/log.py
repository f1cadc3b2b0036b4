"""The messages of the logger "uneven" on standard error."""

import logging
import sys
from typing import TextIO


class _StandardError(logging.StreamHandler[TextIO]):
    """Prints on the current ``sys.stderr``, unless the program has configured logging: then only its handlers do."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)  # not StreamHandler's, which would keep today's sys.stderr

    @property
    def stream(self) -> TextIO:  # type: ignore[override] # an attribute there
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_messages() -> None:
    """Print what the package logs, from INFO on; ``logging.getLogger("uneven")`` changes that."""
    logger = logging.getLogger("uneven")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    handler = _StandardError()
    handler.setFormatter(logging.Formatter("uneven: %(message)s"))
    logger.addHandler(handler)
