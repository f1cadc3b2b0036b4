"""Text from outside (a journal, a cluster file, a script's error), made safe to show.

``uneven.journal.report.console`` passes everything that its ``Console`` prints through :func:`printable`.
``uneven.journal.report.page`` does so with all text of a page, and also escapes HTML.
"""

import re

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except line breaks and tabs, and those that change the direction of writing."""
_HALVES = re.compile("[\ud800-\udfff]")
"""Surrogates, left from bytes that are not UTF-8 or from half a character: files and terminals reject them."""


def printable(text: str) -> str:
    """Return the text without terminal commands and without characters that cannot be encoded."""
    return _HALVES.sub("\ufffd", _COMMANDS.sub("", text))
