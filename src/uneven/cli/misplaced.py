"""Options of uneven that stand after the script, where they are the script's."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence


def misplaced(arguments: Sequence[str], ours: Collection[str], script: str) -> list[str]:
    """Those of a script's arguments that are named like options of uneven and that the script does not seem to know.

    Args:
        arguments: of the script; nothing behind ``--`` is looked at.
        ours: names of options, with both dashes.
        script: its text; a script that has the word in it knows the option.
    """
    found = []
    for argument in arguments:
        if argument == "--":
            break
        name = argument.partition("=")[0].replace("_", "-")
        if name not in ours or name in found:
            continue
        word = re.sub("[-_]", "[-_]", name.removeprefix("--"))
        if not re.search(rf"(?<![\w-]){word}(?![\w-])", script.replace("--", " ")):
            found.append(name)
    return found


def hint(names: Sequence[str], script: str) -> str:
    """What to say of them."""
    several = len(names) > 1
    return (
        f"{', '.join(names)} after {script} {'go' if several else 'goes'} to the script; if uneven is meant, put "
        f"{'them' if several else 'it'} before {script}"
    )
