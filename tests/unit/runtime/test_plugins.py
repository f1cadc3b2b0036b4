"""Plug-ins of other distributions: found by entry points when a name asks for them, and refused with their origin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributions import MINE, install
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.balance import Balancer, Even, LbBsp
from uneven.policy.core import registry
from uneven.policy.core.registry import Registry
from uneven.policy.sync import SyncPolicy
from uneven.run.start.connect import versions
from uneven.runtime import plugins


@pytest.fixture
def balancers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Balancer]:
    """A registry that looks like the real one, which what is loaded here would stay in."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_in_use", set())
    find = registry.find_outside
    ours = "uneven-bench"  # is installed where tests run
    foreign = lambda kind: [one for one in find(kind) if ours not in one.distribution]  # noqa: E731
    monkeypatch.setattr(registry, "find_outside", foreign)
    for name in ("fast_shares", "slow_shares"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found: Registry[Balancer] = Registry("balancer", Balancer)  # type: ignore[type-abstract]
    found.register("even", Even)
    found.register("lb-bsp", LbBsp, note="experimental")
    return found


def test_it_is_found_by_its_name_and_takes_options(balancers: Registry[Balancer], tmp_path: Path) -> None:
    install(tmp_path)
    mine = balancers.resolve("mine:least=2")
    assert (type(mine).__name__, vars(mine)) == ("Mine", {"least": 2})
    assert "mine" in balancers
    with pytest.raises(UnknownNameError, match=r"unknown key for balancer 'mine': 'leats'; did you mean 'least'"):
        balancers.resolve("mine:leats=2")


def test_names_are_listed_without_an_import(balancers: Registry[Balancer], tmp_path: Path) -> None:
    install(tmp_path, code="raise AssertionError('nobody asked for this')")
    assert balancers.listed() == ["even", "lb-bsp (experimental)", "mine (fast-shares 1.2)"]
    with pytest.raises(UnknownNameError) as told:
        balancers.resolve("mien")
    assert str(told.value) == (
        "unknown balancer 'mien'; did you mean 'mine'? (known: even, lb-bsp (experimental), mine (fast-shares 1.2))"
    )
    with pytest.raises(ConfigError, match=r"mine \(fast-shares 1\.2\)"):
        balancers.resolve(3)  # type: ignore[arg-type]
    assert "fast_shares" not in sys.modules


def test_nobody_looks_for_a_name_that_is_registered(
    balancers: Registry[Balancer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(group: str) -> list[registry.Outside]:
        raise LookupError(group)

    monkeypatch.setattr(registry, "find_outside", find)
    balancers.resolve("even")
    assert "even" in balancers
    assert list(balancers) == ["even", "lb-bsp"]
    with pytest.raises(LookupError, match=r"uneven\.balancers"):
        balancers.resolve("mine")


def test_nor_imports_what_it_takes_to_look() -> None:
    code = (
        "import sys, uneven; from uneven.policy.sync import policies; policies.resolve('shadow:ma')\n"
        "before = 'importlib.metadata' in sys.modules; 'another' in policies\n"
        "print(before, 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False True\n"


@pytest.mark.parametrize(
    ("kind", "group"),
    [("balancer", "uneven.balancers"), ("synchronisation policy", "uneven.policies"), ("merge", "uneven.merges")],
)
def test_every_registry_has_a_group(kind: str, group: str) -> None:
    assert Registry(kind, SyncPolicy).group == group  # type: ignore[type-abstract]


def test_a_name_of_ours_is_refused_with_its_origin(balancers: Registry[Balancer], tmp_path: Path) -> None:
    entries = {"uneven.balancers": {"mine": "fast_shares:Mine", "even": "fast_shares:Mine"}}
    install(tmp_path, entries=entries)
    said = r"entry point 'even = fast_shares:Mine' of fast-shares 1\.2 has a balancer named .even.*policy\.balance"
    for look in (lambda: balancers.resolve("mine"), balancers.listed, lambda: balancers.resolve("other")):
        with pytest.raises(ConfigError, match=said):
            look()
    assert isinstance(balancers.resolve("even"), Even)


def test_two_distributions_may_not_bring_one_name(balancers: Registry[Balancer], tmp_path: Path) -> None:
    install(tmp_path)
    install(tmp_path, "slow-shares", "3", entries={"uneven.balancers": {"mine": "slow_shares:Mine"}})
    with pytest.raises(ConfigError, match=r"'mine', which entry point .* of (fast|slow)-shares"):
        balancers.resolve("mine")


def test_it_may_register_itself_too(balancers: Registry[Balancer], tmp_path: Path) -> None:
    """As plug-ins did before there were entry points."""
    install(tmp_path, code=f"{MINE}\nREGISTRY.register('mine', Mine)\n".replace("REGISTRY", "__import__('sys').here"))
    vars(sys)["here"] = balancers
    try:
        balancers.resolve("mine")
        assert "mine (fast-shares 1.2)" in balancers.listed()
    finally:
        del vars(sys)["here"]


@pytest.mark.parametrize(
    ("code", "target", "cause"),
    [
        ("", "fast_shares:Mine", "AttributeError: module 'fast_shares' has no attribute 'Mine'"),
        ("import torch_of_the_future", "fast_shares:Mine", "No module named 'torch_of_the_future'"),
        ("def", "fast_shares:Mine", "SyntaxError: invalid syntax"),
        ("", "fast_shares_gone:Mine", "No module named 'fast_shares_gone'"),
        ("Mine = 3", "fast_shares:Mine", "names 3: let it name a class or a function that returns a Balancer"),
        ("def Mine(): return 3", "fast_shares:Mine", "makes a int, which is not a Balancer"),
    ],
)
def test_what_fails_to_load_names_distribution_entry_point_and_cause(
    balancers: Registry[Balancer], tmp_path: Path, code: str, target: str, cause: str
) -> None:
    install(tmp_path, code=code, entries={"uneven.balancers": {"mine": target}})
    with pytest.raises(ConfigError) as told:
        balancers.resolve("mine")
    assert cause in str(told.value)
    if "makes a int" not in cause:
        assert f"'mine = {target}' of fast-shares 1.2" in str(told.value)


def test_an_error_of_its_own_keeps_its_kind_and_says_where_it_is_from(
    balancers: Registry[Balancer], tmp_path: Path
) -> None:
    install(tmp_path, code="class NoDevice(Exception): ...\nraise NoDevice('no device')")
    with pytest.raises(Exception, match="no device") as told:
        balancers.resolve("mine")
    assert type(told.value).__name__ == "NoDevice"
    assert told.value.__notes__ == [
        "while balancer 'mine' was loaded from the entry point 'mine = fast_shares:Mine' of fast-shares 1.2"
    ]


def test_ranks_compare_the_distributions_whose_plug_ins_they_use(balancers: Registry[Balancer], tmp_path: Path) -> None:
    install(tmp_path)
    balancers.listed()
    assert "plug-ins" not in versions()
    balancers.resolve("mine")
    assert versions()["plug-ins"] == "fast-shares 1.2"


def test_a_distribution_without_entry_points_brings_nothing(tmp_path: Path) -> None:
    assert plugins.find("uneven.nothing") == []


Help = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def uneven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Help:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command: list[Any] = [sys.executable, "-m", "uneven", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)

    return call


def test_the_help_lists_installed_ones_and_survives_those_that_are_refused(uneven: Help, tmp_path: Path) -> None:
    install(tmp_path)
    said = "".join(uneven("run", "--help").stdout.split())  # a narrow terminal breaks names at their hyphens
    for words in (
        "analytic, numerical",
        "omnilearn (uneven-bench ",
        ", mine (fast-shares 1.2)",
        "narx (costly), auto (costly), light, guess (fast-shares 1.2).",
        "shadow, often (fast-shares 1.2).",
    ):
        assert words.replace(" ", "") in said
    install(tmp_path, "slow-shares", "3", entries={"uneven.balancers": {"even": "slow_shares:Mine"}})
    done = uneven("simulate", "--help")
    assert done.returncode == 0
    assert "which uneven.policy.balance.balancer.Even already has" in " ".join(done.stdout.split())


def test_the_simulator_plays_an_installed_one(uneven: Help, tmp_path: Path) -> None:
    install(tmp_path)
    for balance in ("mine:least=3", "lb-bsp:predictor=guess"):
        done = uneven("simulate", "demo4", "--balance", balance, "--iterations", "5")
        assert done.returncode == 0, done.stderr
    wrong = uneven("simulate", "demo4", "--balance", "mnie")
    assert wrong.returncode == 2
    assert "did you mean 'mine'?" in wrong.stderr
