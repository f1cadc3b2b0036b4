"""A check for options of uneven after the script, where they go to the script."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence


def misplaced(arguments: Sequence[str], ours: Collection[str], script: str) -> list[str]:
    """Return the script's arguments that are options of uneven (``ours``, with both dashes) and that the script's text
    does not mention. Arguments after ``--`` are ignored."""
    found = []
    for argument in arguments:
        if argument == "--":
            break
        name = argument.partition("=")[0].replace("_", "-")
        if name not in ours or name in found:
            continue
        # Scripts may spell an option with dashes or underscores.
        word = re.sub("[-_]", "[-_]", name.removeprefix("--"))
        if not re.search(rf"(?<![\w-]){word}(?![\w-])", script.replace("--", " ")):
            found.append(name)
    return found


def hint(names: Sequence[str], script: str) -> str:
    several = len(names) > 1
    return (
        f"{', '.join(names)} after {script} {'go' if several else 'goes'} to the script; if uneven is meant, put "
        f"{'them' if several else 'it'} before {script}"
    )
