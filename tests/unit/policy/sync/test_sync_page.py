"""docs/ideas/sync.md and docs/policies.md say what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from uneven.policy.sync import policies

ROOT = Path(__file__).parents[4]
PAGES = "".join((ROOT / "docs" / name).read_text() for name in ("ideas/sync.md", "policies.md"))


def rows(title: str) -> dict[str, list[str]]:
    """The table of a section: the name in the first cell → the other cells."""
    section = PAGES.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return {row[0]: row[1].split(" | ") for row in re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, re.MULTILINE)}


@pytest.mark.parametrize("name", list(policies))
def test_the_facts_are_those_of_the_code(name: str) -> None:
    policy = policies.resolve(name)
    facts = policy.facts
    assert facts is not None
    said = [facts.moves, facts.waits, facts.stale, facts.lost_when_one_dies, policy.evaluation_model.value]
    assert rows("What each of them costs")[name] == said


def test_every_policy_has_a_claim_and_every_file_is_there() -> None:
    table = rows("From claim to file")
    assert set(table) == set(policies)
    files = {cells[-1].split("`")[1] for cells in table.values()}
    assert len(files) >= 8
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_every_option_is_named() -> None:
    for name in policies:
        known = {key for key in inspect.signature(policies[name]).parameters if key != "inner"}
        assert set(rows(f"`{name}`")) == known, name
