"""Text from elsewhere (a journal, a cluster file, a script's error), made safe to show. Pure.

Whoever writes to a terminal sends it through :func:`printable`; ``uneven.report.console`` does so with all that is
printed by its ``Console``, and ``uneven.report.page`` with all that goes into a page, where it escapes HTML as well.
"""

from __future__ import annotations

import re

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but line breaks and tabs, and those that turn the direction of writing."""
_HALVES = re.compile("[\ud800-\udfff]")
"""What is left of bytes that were no UTF-8, or of half a character: no file and no terminal takes it."""


def printable(text: str) -> str:
    """Without what would command a terminal or fail to be encoded; what is left of an escape sequence can be read."""
    return _HALVES.sub("\ufffd", _COMMANDS.sub("", text))
