"""Writes the tables of docs/how-to/what-works/: ``python tests/idioms/idiom_page.py``."""

from __future__ import annotations

from pathlib import Path

from idiom_base import Agrees, Differs, Either, Equal, Expect, Idiom, Refused
from idiom_runs import IDIOMS, POLICIES, RUN, expected
from known import KNOWN

FOLDER = Path(__file__).parents[2] / "docs" / "how-to" / "what-works"
PAGES = {
    "Data": "data",
    "Checkpoints": "checkpoints",
    "Gradients": "gradients",
    "Reused batches and second loops": "reused-batches",
    "Loops": "loops",
    "Models": "models",
    "Other ways to differentiate": "differentiation",
    "Optimizers, schedules, averages": "optimizers",
    "Wrapped models": "wrapped-models",
    "Sessions and ranks": "sessions",
}
"""For each group of idioms the name of its page."""

BEGIN, END = "<!-- tests/idioms/idiom_page.py writes the table -->\n", "<!-- end of the table -->\n"


def word(expect: Expect) -> str:
    if isinstance(expect, Equal):
        return "equal" if expect.tolerance <= 1e-6 else "equal, within bfloat16"
    if isinstance(expect, Agrees):
        return "agree"
    if isinstance(expect, Refused):
        return "error"
    if isinstance(expect, Either):
        return f"{word(expect.otherwise)} or error"
    if isinstance(expect, Differs):
        return "**differs**, with a warning" if expect.warns else "**differs**"
    return "—"


def cell(idiom: Idiom, policy: str) -> str:
    """What comes of an idiom under a policy, with which shares if that matters."""
    found: dict[str, list[str]] = {}
    for shares in [shares for one, shares in RUN if one == policy]:
        late = " (not yet)" if (idiom.name, policy, shares) in KNOWN else ""
        found.setdefault(word(expected(idiom, policy, shares)) + late, []).append(shares)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{text} ({', '.join(shares)})" for text, shares in found.items())


def table(group: str) -> str:
    header = f"| idiom | {' | '.join(f'`{one}`' for one in POLICIES)} |"
    rows = [
        f"| {idiom.says} | {' | '.join(cell(idiom, policy) for policy in POLICIES)} |"
        for idiom in IDIOMS.values()
        if idiom.group == group
    ]
    return "\n".join([header, "|---|---|---|---|---|", *rows])


def pages() -> dict[Path, str]:
    """Each page with the table that it should have."""
    found: dict[Path, str] = {}
    for group in dict.fromkeys(idiom.group for idiom in IDIOMS.values()):
        path = FOLDER / f"{PAGES[group]}.md"
        before, rest = path.read_text().split(BEGIN)
        found[path] = f"{before}{BEGIN}\n{table(group)}\n\n{END}{rest.split(END)[1]}"
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
