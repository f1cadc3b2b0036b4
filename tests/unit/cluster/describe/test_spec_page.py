"""docs/clusters.md says what the code takes, and docs/how-to/describe-a-cluster.md has an example."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from uneven.cluster import files
from uneven.cluster.pure.describe.quantities import INLINE_KEYS, RECORDED_KEYS
from uneven.cluster.pure.describe.spec import (
    ClusterSpec,
    Do,
    Event,
    Node,
    Preconditioning,
    SiteLink,
    TableWork,
    Workload,
)

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "clusters.md").read_text()
GUIDE = (DOCS / "how-to" / "describe-a-cluster.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}")[2].partition("\n## ")[0]


def keys(title: str) -> set[str]:
    cells = re.findall(r"^\| (`.*?) \|", section(title), flags=re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("title", "kind", "more"),
    [
        ("`[[nodes]]`", Node, {"count", "gpus", "present"}),
        ("`[workload]`", Workload, set()),
        ("`[[events]]`", Event, set()),
        ("`[[links]]`", SiteLink, set()),
        ("`[preconditioner]`", Preconditioning, set()),
        ("`[tables]`", TableWork, set()),
        ("At the top", ClusterSpec, set()),
    ],
)
def test_every_key_is_explained(title: str, kind: type, more: set[str]) -> None:
    parts = {"nodes", "events", "links", "workload", "preconditioner", "tables"} if kind is ClusterSpec else set()
    assert keys(title) == {one.name for one in fields(kind)} - parts | more


def test_every_key_of_a_quantity_is_explained() -> None:
    assert keys("What changes over time") == {*INLINE_KEYS, *RECORDED_KEYS}


def test_defaults_of_the_workload_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (`.*?) \| [^|]*\| ([^|]*) \|", section("`[workload]`"), flags=re.MULTILINE)
    units = {"MiB": 2**20}
    for cell, defaults in rows:
        for key, default in zip(re.findall(r"`(\w+)`", cell), re.split(r", ", defaults), strict=True):
            if default == "evenly":
                assert getattr(Workload(), key) == ()
                continue
            if default.startswith("`"):
                assert default.strip('`"') == getattr(Workload(), key), key
                continue
            value, _, unit = default.replace(",", "").partition(" ")
            above, _, below = value.partition("/")
            assert float(above) / float(below or 1) * units.get(unit, 1) == getattr(Workload(), key), key


def test_the_shipped_ones_are_listed() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| .* \| (`UNEVEN_DATA`)? ?\|$", section("Descriptions that come"), flags=re.MULTILINE
    )
    assert {name for name, _ in rows} == set(files.shipped())
    recorded = ["shared_cluster", "spot_2022", "spot_preempted", "spot_fours", "spot_sixteen"]
    assert [name for name, needs in rows if needs] == recorded


def test_every_event_is_named() -> None:
    assert all(f"`{do.value}`" in section("`[[events]]`") for do in Do)


def test_the_example_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "example.toml").write_text(example)
    spec = files.load(tmp_path / "example.toml")
    assert [node.name for node in spec.nodes] == ["fast0", "fast1", "shared", "far"]
    assert {event.do for event in spec.events} == {Do.SLOW, Do.CUT_LINK, Do.LEAVE}
    assert spec.nodes[2].share.lasts_s == 6.0
