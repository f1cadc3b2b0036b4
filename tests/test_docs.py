"""The documentation is run: every Python block of the architecture page, then what its policies decide."""

import importlib
import inspect
import re
import runpy
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from uneven.cli.commands import COMMANDS
from uneven.errors import ConfigError
from uneven.policy.core.actions import Moment, Payload, Quorum, Via, Wait
from uneven.policy.core.views import BalanceView, Limits, Observation, SyncView
from uneven.policy.predict import predictors
from uneven.policy.sync import BSP
from virtual_time import play

DOCS = Path(__file__).parents[1] / "docs"
ARCHITECTURE = (DOCS / "architecture.md").read_text()
EVERYBODY = (0, 1, 2, 3)
UNEVEN = {0: 1.0, 1: 1.0, 2: 1.0, 3: 4.0}  # seconds per step: rank 3 is slow
STEPS = 20


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page() -> SimpleNamespace:
    """The names that the blocks define, run in order in one namespace."""
    names: dict[str, Any] = {"__name__": "architecture"}
    for block in blocks(ARCHITECTURE, "python"):
        above = ARCHITECTURE[: ARCHITECTURE.index(block)].count("\n")  # so that errors name the page's line
        exec(compile("\n" * above + block, str(DOCS / "architecture.md"), "exec"), names)
    return SimpleNamespace(**names)


def view(rank: int = 0, clock: int = 0, members: tuple[int, ...] = EVERYBODY, **rest: Any) -> SyncView:
    return SyncView(rank=rank, clock=clock, members=members, **rest)


def test_every_promised_policy_has_a_section() -> None:
    titles = re.findall(r"^## (.*)$", ARCHITECTURE, flags=re.MULTILINE)
    wanted = [
        *("BSP", "SSP(s)", "Backup workers(b)", "Local SGD(every)", "Shadow(EASGD)", "DS-Sync"),
        *("Gaia: Geo(inner, threshold)", "LB-BSP on GPUs", "A worker leaves or joins mid-run"),
    ]
    assert [title for title in titles if title in wanted] == wanted
    for section in ARCHITECTURE.split("\n## ")[-len(wanted) :]:
        assert "**Real run.**" in section
        assert "**Simulator.**" in section


def test_signatures_are_those_of_the_code() -> None:
    lines = "".join(blocks(ARCHITECTURE, "signatures")).splitlines()
    assert len(lines) >= 4
    for line in lines:
        path = line.split("(")[0]
        module, _, name = path.rpartition(".")
        found = str(inspect.signature(getattr(importlib.import_module(module), name)))
        found = re.sub(r"\b([a-z_]+\.)+(?=[A-Z])", "", found).removesuffix(" -> None")
        assert line == path + found


def test_ssp_waits_for_clock_minus_s(page: SimpleNamespace) -> None:
    assert page.SSP(3).plan(view(clock=10)).waits == (Wait(EVERYBODY, 7),)
    assert page.SSP(3).plan(view(clock=10)).exchanges[0].via is Via.SERVER


def test_backup_has_a_quorum_and_never_an_empty_one(page: SimpleNamespace) -> None:
    assert page.Backup(1).plan(view()).exchanges[0].quorum == Quorum(count=3)
    assert page.Backup(9).plan(view()).exchanges[0].quorum == Quorum(count=1)


def test_local_sgd_exchanges_after_every_so_many_steps(page: SimpleNamespace) -> None:
    policy = page.LocalSGD(5)
    assert [clock for clock in range(20) if policy.plan(view(clock=clock)).exchanges] == [4, 9, 14, 19]


def test_shadow_puts_every_exchange_into_the_background(page: SimpleNamespace) -> None:
    for inner in (page.EASGD(0.5), page.LocalSGD(1), page.SSP(2), page.Geo(page.LocalSGD(1), 0.01)):
        seen = view(sites=dict.fromkeys(EVERYBODY, "here"))
        plan = page.Shadow(inner).plan(seen)
        assert {one.moment for one in plan.exchanges} == {Moment.BACKGROUND}
        assert [one.payload for one in plan.exchanges] == [one.payload for one in inner.plan(seen).exchanges]
        assert not plan.waits
        assert page.Shadow(inner).evaluation_model is inner.evaluation_model
    with pytest.raises(ConfigError, match="gradient does not fit the moment 'background'"):
        page.Shadow(BSP()).plan(view())


@pytest.mark.parametrize(("size", "columns"), [(4, 2), (6, 3), (16, 4), (7, 3)])
def test_ds_sync_connects_all_members_in_two_rounds(page: SimpleNamespace, size: int, columns: int) -> None:
    members = tuple(range(10, 10 + size))
    policy = page.Shuffle(columns)

    def group(rank: int, clock: int) -> tuple[int, ...]:
        found: tuple[int, ...] = policy.plan(view(rank, clock, members)).exchanges[0].members
        assert rank in found
        return found

    for clock in (0, 1):
        for rank in members:  # groups are disjoint, and their members agree on them
            assert all(group(other, clock) == group(rank, clock) for other in group(rank, clock))
    reached = {rank: {far for near in group(rank, 0) for far in group(near, 1)} for rank in members}
    if size % columns == 0:
        assert all(found == set(members) for found in reached.values())
    values = {rank: float(rank**2) for rank in members}
    for clock in (0, 1):
        values = {r: sum(values[m] for m in group(r, clock)) / len(group(r, clock)) for r in members}
    if size % columns == 0:
        assert list(values.values()) == pytest.approx([sum(m**2 for m in members) / size] * size)


def test_gaia_speaks_once_per_site_and_less_and_less_gets_through(page: SimpleNamespace) -> None:
    sites = {0: "east", 1: "west", 2: "east", 3: "west"}
    plan = page.Geo(BSP(), threshold=0.01, lead=2).plan(view(rank=1, clock=3, sites=sites))
    near, far = plan.exchanges
    assert (near.payload, near.members) == (Payload.GRADIENT, (1, 3))
    assert (far.payload, far.members, far.parties) == (Payload.DELTA, EVERYBODY, ((0, 2), (1, 3)))
    assert far.moment is Moment.BACKGROUND
    assert far.select.threshold == pytest.approx(0.01 / 2)
    assert plan.waits == (Wait(EVERYBODY, 1),)


def test_gaia_over_ssp_keeps_both_waits(page: SimpleNamespace) -> None:
    sites = {0: "east", 1: "east", 2: "west", 3: "west"}
    plan = page.Geo(page.SSP(1), threshold=0.01, lead=5).plan(view(rank=3, clock=9, sites=sites))
    assert plan.waits == (Wait((2, 3), 8), Wait(EVERYBODY, 4))


def test_members_and_groups_change_when_somebody_leaves(page: SimpleNamespace) -> None:
    rest = (0, 1, 3)
    assert BSP().plan(view(members=rest)).exchanges[0].members == rest
    assert page.Shuffle(2).plan(view(rank=3, members=rest)).exchanges[0].members == (3,)
    assert page.Shuffle(2).plan(view(rank=3)).exchanges[0].members == (2, 3)


def test_contradictions_are_refused_where_they_are_made(page: SimpleNamespace) -> None:
    fine = BSP().plan(view()).exchanges[0]
    with pytest.raises(ConfigError, match="quorum of 5 does not fit 4 members"):
        replace(fine, quorum=Quorum(count=5))
    with pytest.raises(ConfigError, match="do not divide"):
        replace(fine, parties=((0, 1), (1, 2, 3)))
    with pytest.raises(ConfigError, match="parameters does not fit the moment 'backward'"):
        replace(fine, payload=Payload.PARAMETERS)


def test_in_virtual_time_bsp_waits_for_the_slowest() -> None:
    run = play(BSP(), UNEVEN, STEPS)
    assert run.waited_s == {0: 60.0, 1: 60.0, 2: 60.0, 3: 0.0}
    assert set(run.ends_s.values()) == {80.0}


def test_in_virtual_time_ssp_is_bounded_and_its_edge_is_bsp(page: SimpleNamespace) -> None:
    slack = play(page.SSP(3), UNEVEN, STEPS)
    assert slack.waited_s[0] == 60.0 - 3 * 4.0 - 3.0  # s steps of the slow one, and no barrier at the end
    assert slack.widest_gap == 3 + 1
    strict, bsp = play(page.SSP(0), UNEVEN, STEPS), play(BSP(), UNEVEN, STEPS)
    assert strict.starts_s == bsp.starts_s


def test_in_virtual_time_shadow_lets_nobody_wait(page: SimpleNamespace) -> None:
    run = play(page.Shadow(page.LocalSGD(1)), UNEVEN, STEPS)
    assert not any(run.waited_s.values())
    assert run.ends_s == {0: 20.0, 1: 20.0, 2: 20.0, 3: 80.0}


def test_in_virtual_time_backups_leave_the_slow_one_behind(page: SimpleNamespace) -> None:
    run = play(page.Backup(1), UNEVEN, STEPS)
    assert run.waited_s[0] == 0.0
    assert run.ends_s[0] == 20.0
    assert len(run.starts_s[3]) == 5  # of 20; the others' means carried it over the rest
    assert run.clocks[3] == STEPS


def test_in_virtual_time_ds_sync_is_no_cure_for_a_lasting_straggler(page: SimpleNamespace) -> None:
    run = play(page.Shuffle(2), UNEVEN, STEPS)
    assert max(run.ends_s.values()) == 80.0
    assert run.waited_s[0] > 50.0


def test_in_virtual_time_geo_waits_for_the_lead_only(page: SimpleNamespace) -> None:
    sites = {0: "east", 1: "east", 2: "east", 3: "west"}
    run = play(page.Geo(BSP(), 0.01, lead=5), UNEVEN, STEPS, sites=sites)
    assert run.widest_gap == 5 + 1
    assert play(page.Geo(BSP(), 0.01, lead=STEPS), UNEVEN, STEPS, sites=sites).waited_s[0] == 0.0


def test_in_virtual_time_the_rest_goes_on_when_somebody_leaves(page: SimpleNamespace) -> None:
    for policy in (BSP(), page.SSP(2), page.LocalSGD(4), page.Shuffle(2), page.Backup(1)):
        run = play(policy, UNEVEN, STEPS, leaves_s={3: 9.0})
        assert [run.clocks[rank] for rank in (0, 1, 2)] == [STEPS] * 3
        assert max(run.ends_s.values()) <= 9.0 + STEPS


def gpu_seconds(rank: int, samples: int) -> float:
    """Flat up to saturation, then linear; rank 3 is four times slower."""
    return max(0.05, 0.002 * samples) * (4 if rank == 3 else 1)


def test_numerical_balancing_converges_within_its_limits(page: SimpleNamespace) -> None:
    balancer, shares, total = page.LeaderStraggler(step=16), (64, 64, 64, 64), 256
    limits = Limits(lower=(8,) * 4, upper=(128, 70, 128, 128))
    for iteration in range(60):
        observed = tuple(
            Observation(iteration=iteration, samples=x, local_s=gpu_seconds(rank, x)) for rank, x in enumerate(shares)
        )
        seen = BalanceView(
            iteration=iteration,
            global_batch=total,
            members=EVERYBODY,
            shares=shares,
            observed=observed,
            predicted_per_s=tuple(one.speed_per_s for one in observed),
            limits=limits,
        )
        shares = balancer.split(seen).shares
        assert sum(shares) == total
        assert all(low <= x <= high for low, x, high in zip(limits.lower, shares, limits.upper, strict=True))
    assert balancer.step < 16
    assert shares[1] <= 70
    movable = [gpu_seconds(rank, shares[rank]) for rank in (0, 2, 3)]
    assert max(movable) / min(movable) < 1.5


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(root: Path) -> list[str]:
    found = []
    for path in [*(root / "docs").rglob("*.md"), *root.glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)]+)", path.read_text()):
            name, _, anchor = target.partition("#")
            page = path.parent / name if name else path
            if page.parent.name == "cli" and page.stem in ("index", *COMMANDS):  # docs/commands.py writes it
                continue
            if not page.exists() or (anchor and anchor not in anchors(page.read_text())):
                found.append(f"{path.relative_to(root)} links to {target}")
    return found


def test_links_between_pages_lead_somewhere() -> None:
    assert dead_links(DOCS.parent) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = "# Now, what?\n```sh\n# no heading\n```\n[here](#now-what) [away](gone.md)"
    (tmp_path / "docs" / "page.md").write_text(page)
    (tmp_path / "README.md").write_text("[fine](docs/page.md#now-what) [not](docs/page.md#no-heading)")
    assert dead_links(tmp_path) == ["docs/page.md links to gone.md", "README.md links to docs/page.md#no-heading"]


PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
PICTURE_BYTES = 150_000


def wrong_pictures(docs: Path) -> list[str]:
    """What is missing, shown by no page, too large, or without words for those who cannot see it."""
    named: set[Path] = set()
    found = []
    for page in sorted([*docs.rglob("*.md"), *docs.parent.glob("README.md")]):
        for words, target in PICTURE.findall(page.read_text()):
            picture = (page.parent / target).resolve()
            named.add(picture)
            if not words:
                found.append(f"{page.name} says nothing of {picture.name}")
            if not picture.is_file():
                found.append(f"{page.name} shows {picture.name}, which is not there")
    for picture in sorted((docs / "pictures").rglob("*.png")):
        if picture.resolve() not in named:
            found.append(f"no page shows {picture.name}")
        if picture.stat().st_size > PICTURE_BYTES:
            found.append(f"{picture.name} has more than {PICTURE_BYTES} bytes")
    return found


def test_every_picture_is_there_small_and_shown() -> None:
    assert wrong_pictures(DOCS) == []
    shown = {page.stem for page in (DOCS / "how-to").glob("*.md") if PICTURE.search(page.read_text())}
    assert shown >= {"describe-a-cluster", "emulate", "simulate", "plan", "report"}


def test_pictures_that_are_missing_unused_large_or_mute_are_found(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for name, size in (("fine", 10), ("large", PICTURE_BYTES + 1), ("unused", 10)):
        (tmp_path / "pictures" / f"{name}.png").write_bytes(bytes(size))
    (tmp_path / "how-to").mkdir()
    pictures = "![what one sees](../pictures/fine.png) ![](../pictures/large.png) ![gone](../pictures/gone.png)"
    (tmp_path / "how-to" / "page.md").write_text(pictures)
    assert wrong_pictures(tmp_path) == [
        "page.md says nothing of large.png",
        "page.md shows gone.png, which is not there",
        f"large.png has more than {PICTURE_BYTES} bytes",
        "no page shows unused.png",
    ]


def test_every_dependency_has_its_reason_and_nothing_else_has() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())
    groups = [
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    page = (DOCS / "dependencies.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \|.* (\S+) \|$", page, flags=re.MULTILINE)
    assert sorted({need for need, _ in rows}) == sorted({need for group in groups for need in group})
    assert [need for need, _ in rows if "<" in need] == []  # no breakage is known
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (DOCS.parent / "constraints.txt").read_text(), flags=re.MULTILINE))
    tested = {Requirement(need).name: newest for need, newest in rows if newest != "newest"}
    assert tested == pins
    assert all(newest in Requirement(need).specifier for need, newest in rows if newest != "newest")


def test_install_lists_every_extra() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())
    section = (DOCS / "getting-started" / "install.md").read_text().split("## Extras")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == sorted(project["project"]["optional-dependencies"])


def test_no_page_or_message_installs_uneven_from_an_index() -> None:
    root = DOCS.parent
    files = [path for folder in ("docs", "src", "benchmarks", "examples") for path in (root / folder).rglob("*")]
    texts = {path: path.read_text() for path in [root / "README.md", *files] if path.suffix in (".md", ".py", ".toml")}
    index = re.compile(r"pip install ['\"]?uneven\b|uneven(-bench)?\[\w")
    assert [f"{path}: {found[0]}" for path, text in texts.items() for found in index.finditer(text)] == []


def test_the_readme_adds_the_lines_that_the_script_of_start_has() -> None:
    (diff,) = blocks((DOCS.parent / "README.md").read_text(), "diff")
    (script,) = blocks((DOCS / "start.md").read_text(), "python")
    added = [line[2:].partition("  #")[0] for line in diff.splitlines() if line.startswith("+")]
    assert len(added) == 4
    assert [line for line in added if line not in (one.partition("  #")[0] for one in script.splitlines())] == []


def test_the_lists_of_names_are_those_of_the_registries() -> None:
    names = runpy.run_path(str(DOCS / "names.py"))
    page = (DOCS / "reference.md").read_text()
    should = names["written"](page)
    assert page == should, f"run `python docs/names.py`, or let docs/reference.md say:\n{should}"
    shrunk = page.replace("| `numerical` |", "| `nummerical` |")
    assert names["written"](shrunk) == page
    with pytest.raises(KeyError, match="policies"):
        names["written"](page.replace("<!-- names: policies -->", ""))


def test_the_reference_says_what_the_notes_of_the_lists_mean() -> None:
    page = (DOCS / "reference.md").read_text()
    noted = [name for name, note in predictors.notes.items() if note == "costly"]
    assert noted
    assert all(f"`{name}` *(costly)*" in page for name in noted)
    assert "**When the costly ones pay off.**" in page


def unpinned(makefile: str) -> list[str]:
    """Lines that install something other than the tested versions, and stamps that overlook a change of these."""
    pips = [line for line in makefile.splitlines() if "pip" in line and "install" in line and not line.startswith("#")]
    bad = [line for line in pips if "$(INSTALL)" not in line and "--constraint constraints.txt" not in line]
    stamps = re.findall(r"^\.venv/\.stamp-\w+:.*pyproject\.toml.*$", makefile, flags=re.MULTILINE)
    return bad + [line for line in stamps if "constraints.txt" not in line]


def test_make_installs_the_tested_versions() -> None:
    makefile = (DOCS.parent / "Makefile").read_text()
    assert makefile.count("$(INSTALL)") >= 3
    assert unpinned(makefile) == []
    bad = "\t$(BIN)/python -m pip install --quiet .", ".venv/.stamp-test: pyproject.toml"
    assert unpinned("\n".join(bad)) == list(bad)
