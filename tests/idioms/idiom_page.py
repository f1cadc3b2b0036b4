"""Writes the tables of docs/how-to/what-works.md: ``python tests/idioms/idiom_page.py``."""

from __future__ import annotations

from pathlib import Path

from idiom_base import Agrees, Differs, Either, Equal, Expect, Idiom, Refused
from idiom_runs import IDIOMS, POLICIES, RUN, expected
from known import KNOWN

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "what-works.md"
BEGIN, END = "<!-- the tables are written by tests/idioms/idiom_page.py -->\n", "<!-- up to here -->\n"


def word(expect: Expect) -> str:
    if isinstance(expect, Equal):
        return "equal" if expect.tolerance <= 1e-6 else "equal, as far as bfloat16 goes"
    if isinstance(expect, Agrees):
        return "agree"
    if isinstance(expect, Refused):
        return "refused"
    if isinstance(expect, Either):
        return f"{word(expect.otherwise)} or refused"
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


def tables() -> str:
    lines: list[str] = []
    for group in dict.fromkeys(idiom.group for idiom in IDIOMS.values()):
        lines += [
            f"## {group}",
            "",
            f"| idiom | {' | '.join(f'`{one}`' for one in POLICIES)} |",
            "|---|---|---|---|---|",
        ]
        for idiom in IDIOMS.values():
            if idiom.group == group:
                lines.append(f"| {idiom.says} | {' | '.join(cell(idiom, policy) for policy in POLICIES)} |")
        lines.append("")
    return "\n".join(lines)


def page() -> str:
    """The page with its tables as they shall be."""
    before, rest = PAGE.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
