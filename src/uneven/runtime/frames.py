"""A filter for the user's own lines in errors and warnings. Imports no torch."""

import os
import sys
import sysconfig
import traceback
import warnings
from types import CodeType, ModuleType, TracebackType

from uneven.errors import UnevenError, UnevenWarning
from uneven.runtime.installed import FOLDER

_INSTALLED = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OTHERS = ["<frozen ", *(os.path.join(folder, "") for folder in {str(FOLDER), *_INSTALLED})]


def not_the_users(module: ModuleType) -> None:
    """Count the folder of ``module``, a command that another package adds, as not the user's code."""
    folder = os.path.join(os.path.dirname(os.path.abspath(str(module.__file__))), "")
    if folder not in _OTHERS:
        _OTHERS.append(folder)


def shorten(error: BaseException) -> None:
    """Leave only the user's own lines in the traceback of an :class:`UnevenError`, and no cause without such a line.

    Nothing changes if no line is the user's, or if ``UNEVEN_TRACEBACK=1``.
    """
    own = _own_lines(error)
    if not isinstance(error, UnevenError) or not own or os.environ.get("UNEVEN_TRACEBACK") == "1":
        return
    trace = None
    for one in reversed(own):
        trace = TracebackType(trace, one.tb_frame, one.tb_lasti, one.tb_lineno)
    error.__traceback__ = trace
    cause = error.__cause__ or error.__context__
    if cause is not None and not _own_lines(cause):
        error.__cause__ = None


def own_places(error: BaseException) -> list[str]:
    """Return the user's own lines in the traceback of an error, each with its file and number, the newest last."""
    return [text.rstrip() for one in _own_lines(error) for text in traceback.format_tb(one, limit=1)]


def warn(message: str, kind: type[UnevenWarning] = UnevenWarning) -> None:
    """Warn at the newest line of the user's code; without a location if this thread runs none."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _foreign(frame.f_code):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level + _foreign(frame.f_code))  # Python has no levels beyond


def _own_lines(error: BaseException) -> list[TracebackType]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found += [] if _foreign(trace.tb_frame.f_code) else [trace]
        trace = trace.tb_next
    return found


def _foreign(code: CodeType) -> bool:
    written = code.co_filename == "<string>" and code.co_name == "__init__"  # by dataclasses
    return written or code.co_filename.startswith(tuple(_OTHERS))
