"""A new family of policies and a new merge are one file: installed, they train, are simulated, planned and listed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_runs import Double, Run, flat, replicas, resumed, virtual
from session_parts import net

from distributions import install
from uneven import Merge, SyncPolicy
from uneven.cli import main
from uneven.cluster.files import load
from uneven.cluster.pure.plan import combinations
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core import registry
from uneven.policy.merge import merges
from uneven.policy.sync import compatible, policies
from uneven.testing.contracts import SyncPolicyContract
from uneven.testing.merges import MergeContract
from uneven.testing.ranks import RankContext, ranks

CODE = (Path(__file__).parent / "leashed.py").read_text().replace("leashed.py", "far_leash.py")
ENTRIES = {"uneven.policies": {"leashed": "far_leash:Leashed"}, "uneven.merges": {"leash": "far_leash:Leash"}}
SPEC, SHARES, STEPS, LIMIT = "leashed:every=2,limit=0.05", "static:shares=7/5", 4, 0.05


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What pip would leave; ranks take the path over."""
    folder = install(tmp_path_factory.mktemp("site") / "packages", "far-leash", "0.3", code=CODE, entries=ENTRIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(registry, "_in_use", set())
        for names in (policies, merges):
            patch.setattr(names, "_loaded", {})
        yield
        sys.modules.pop("far_leash", None)


class TestLeashed(SyncPolicyContract):
    """The suite, inherited."""

    def make(self) -> SyncPolicy:
        return policies.resolve(SPEC)


class TestLeash(MergeContract):
    """The suite, inherited."""

    def make(self) -> Merge:
        return merges.resolve("leash:limit=0.05")


def of_virtual_time(results: list[Any]) -> None:
    """Of the processes, seen from outside."""
    expected = replicas(virtual(SPEC, SHARES, ("one", "one"), STEPS), 2)
    torch.testing.assert_close(torch.tensor(results, dtype=torch.float64), expected, rtol=1e-9, atol=1e-9)
    moved = (expected[0] - flat(net().double())).norm()
    assert 0 < moved <= 2 * LIMIT + 1e-12, "two exchanges on a leash"
    even = replicas(virtual(SPEC, "even", ("one", "one"), STEPS), 2)
    assert not torch.equal(even, expected), "samples count"


@ranks(2, check=of_virtual_time, fresh=True)
def test_it_trains_on_unequal_shares_and_is_resumed(me: RankContext) -> list[float]:
    straight = Run(SPEC, SHARES, model=Double)
    straight.epoch(STEPS)
    straight.agreement.open()
    found = flat(straight.model)
    assert torch.equal(straight.shown(), found)
    straight.session.close()
    first = Run(SPEC, SHARES, model=Double)
    first.epoch(STEPS // 2 + 1)  # in the middle of a block
    again = resumed(first, SPEC, SHARES, first.session.state_dict(), model=Double)
    again.epoch(STEPS // 2 - 1)
    again.agreement.open()
    assert torch.equal(flat(again.model), found)
    again.session.close()
    first.session.close()
    return found.tolist()


@pytest.mark.parametrize("spec", ["blocks:every=2,merge=leash:limit=0.05", "shadow:load=1:leashed"])
def test_families_that_hold_a_merge_or_a_policy_take_these(spec: str) -> None:
    assert policies.resolve(spec).facts is not None


@pytest.mark.parametrize("command", ["run", "simulate", "plan"])
def test_help_lists_it_with_its_package(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "leashed (far-leash 0.3)" in shown


def test_errors_name_it() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'leashed'\? \(known: .*leashed \(far-leash 0\.3\)"):
        policies.resolve("leashd")
    with pytest.raises(UnknownNameError, match=r"did you mean 'leash'\? \(known: .*leash \(far-leash 0\.3\)"):
        policies.resolve("blocks:merge=leesh")
    with pytest.raises(UnknownNameError, match="policy 'leashed': 'evry'; did you mean 'every'"):
        policies.resolve("leashed:evry=2")
    with pytest.raises(ConfigError, match="leashed: every = 0 must be at least 1"):
        policies.resolve("leashed:every=0")


def test_it_is_simulated_and_planned(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "demo4", "--sync", SPEC, "--iterations", "20", "--no-journal"])
    assert ended.value.code == 0
    assert f"lb-bsp under {SPEC}" in capsys.readouterr().out
    assert compatible(SPEC, "lb-bsp") is None
    choices, _ = combinations(load("demo4"), ["even"], [SPEC, "bsp"])
    assert [one.sync for one in choices] == [SPEC, "bsp"]
