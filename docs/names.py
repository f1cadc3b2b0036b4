"""Writes the lists of names in docs/reference.md from the registries: ``python docs/names.py``. A test compares."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path

from uneven.policy.balance import balancers
from uneven.policy.core.registry import Registry
from uneven.policy.predict import predictors
from uneven.policy.skew import partitions, tuners
from uneven.policy.sync import policies
from uneven.search.pure.schedulers import schedulers
from uneven.search.pure.searchers import searchers

PAGE = Path(__file__).parent / "reference.md"
LISTS: dict[str, Registry] = {
    "balancers": balancers,
    "predictors": predictors,
    "policies": policies,
    "schedulers": schedulers,
    "searchers": searchers,
    "partitions": partitions,
    "tuners": tuners,
}


def table(registry: Registry) -> str:
    """One row for each name: what it stands for, with the first line of its docstring."""
    rows = ["| name | class | what it does |", "|---|---|---|"]
    for name, maker in registry.items():
        note = f" *({registry.notes[name]})*" if name in registry.notes else ""
        made = inspect.signature(maker).return_annotation if inspect.isfunction(maker) else maker
        made = getattr(made, "__name__", made)
        rows.append(f"| `{name}`{note} | `{made}` | {_plain(inspect.getdoc(maker) or '')} |")
    return "\n".join(rows)


def _plain(docstring: str) -> str:
    """The first line, in Markdown."""
    line = re.sub(r":class:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", docstring.splitlines()[0])
    return line.replace("``", "`").replace("|", "\\|").removesuffix(".")


def written(page: str, lists: Mapping[str, Registry] = LISTS) -> str:
    """The page with its lists as they should be, each between ``<!-- names: KEY -->`` and ``<!-- end of names -->``.

    Raises:
        KeyError: the page has no place for one of the lists.
    """
    for key, registry in lists.items():
        place = re.compile(rf"(<!-- names: {key} -->\n).*?(<!-- end of names -->)", flags=re.DOTALL)
        if not place.search(page):
            raise KeyError(key)
        text = table(registry)
        page = place.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
