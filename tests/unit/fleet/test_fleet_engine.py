"""Whole trainings with real processes: stopped, killed, failing, and the same in the end."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import fleet_members as members
import uneven.fleet as fleet
from brought import brought
from fleet_members import same
from uneven.errors import CheckpointError, ConfigError, DataError, TrainingError, UnknownNameError
from uneven.fleet.engine import fleet_state as engine_state
from uneven.fleet.engine.fleet_options import Options
from uneven_bench.forked.scripts import Script

RATES = {"small": [1000.0], "wide": [900.0], "scheduled": [950.0]}
OPTIONS = Options(rates=RATES, buffer=256, chunk=32)


def train(directory: Path, max_epochs: int = 3, options: Options = OPTIONS, **given: Any) -> fleet.Result:
    devices = given.pop("devices", 2)
    what = members.ensemble(max_epochs, **given)
    return fleet.train(what, devices=devices, directory=directory, options=options, progress=False)


def weights(result: fleet.Result, name: str) -> dict[str, Any]:
    """The newest checkpoint of a member."""
    folder = engine_state.folders(result.directory, list(result.state.members))[name]
    return torch.load(max(folder.glob("*.pt")), weights_only=True)


def parts(result: fleet.Result, name: str) -> dict[str, Any]:
    """Everything but how long it took."""
    saved = weights(result, name)
    history = [{key: one[key] for key in ("train_loss", "metric", "samples")} for one in saved.pop("history")]
    return {**saved, "history": history}


@pytest.fixture(autouse=True, scope="module")
def light_processes() -> Iterator[None]:
    """New processes import the script that was started, which is pytest here; they can do without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__spec__", None)
        patch.delattr(sys.modules["__main__"], "__file__", raising=False)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fleet.Result:
    """Four epochs without a break: two members at a time, three in all."""
    return train(tmp_path_factory.mktemp("whole"), 4)


def test_all_are_trained_and_answer_together(whole: fleet.Result) -> None:
    assert [(row.rank, row.epochs, row.status) for row in whole.table] == [(i, 4, "trained") for i in (1, 2, 3)]
    assert whole.best.metric == max(row.metric for row in whole.table) > 0.3
    assert [len(plan) for _, plan in whole.state.plan] == [2, 1]
    x, y = members.digits().test[:100]
    mean = whole.predict(x, through=lambda z: z.softmax(-1))
    each = [whole.model(row.name)(x).softmax(-1) for row in whole.table]
    assert torch.allclose(mean, sum(each) / 3)
    assert torch.equal(whole.predict(x, members=["wide"]), whole.model("wide")(x))
    right = (whole.model(whole.best.name)(x).argmax(1) == y).float().mean()
    assert float(right) == pytest.approx(whole.best.metric)
    assert re.search(r"1 \w+ +0\.\d+ +4 +\d", str(whole))
    with pytest.raises(UnknownNameError, match="did you mean 'wide'"):
        whole.model("wild")


def test_stopped_and_resumed_is_the_same_bit_for_bit(whole: fleet.Result, tmp_path: Path) -> None:
    # The first two members are in the middle of their training when the run is killed, everybody with it.
    script = f"""
import sys
sys.path.insert(0, {str(Path(members.__file__).parent)!r})
import fleet_members as members
import uneven.fleet as fleet
from uneven.fleet.engine.fleet_options import Options
from uneven_bench.forked.run import fork_workers
if __name__ == "__main__":
    fork_workers()
    slow = members.ensemble(4, transform=members.slow_jitter)
    fleet.train(slow, devices=2, directory={str(tmp_path / "run")!r}, progress=False,
                options=Options(rates={RATES!r}, buffer=256, chunk=32))
"""
    (tmp_path / "script.py").write_text(script)
    state = tmp_path / "run" / "state.json"
    with Script([tmp_path / "script.py"]) as running:
        while not (state.exists() and '"passes": 0' not in state.read_text()):
            assert running.poll() is None, running.communicate()[1]
            time.sleep(0.02)
        below = psutil.Process(running.pid).children(recursive=True)
        running.kill()
        running.wait()
        assert len(below) >= 4  # who starts processes, a preprocessor and two members at least
        _, alive = psutil.wait_procs(below, timeout=20)
        assert alive == []  # before the block ends all that is left
    assert 0 < engine_state.load(tmp_path / "run", asked(4)).passes < 8
    with pytest.raises(CheckpointError, match=r"has not finished.*function fleet_members.slow_jitter"):
        train(tmp_path / "run", 4)
    (tmp_path / "run" / "code.json").unlink()  # to resume with other code
    resumed = train(tmp_path / "run", 4)
    for name in RATES:
        assert len(resumed.state.members[name].epochs) == 4
        assert same(parts(resumed, name), parts(whole, name)), name
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.pt")}
    again = train(tmp_path / "run", 4)
    assert again.best == resumed.best
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.pt")} == before


def asked(max_epochs: int) -> dict[str, Any]:
    what = members.ensemble(max_epochs)
    return {
        "members": list(what.members), "samples": 400, "validation samples": 100, "seed": 0, "chunk": 32,
        "metric": "accuracy",
    }  # fmt: skip


def test_members_that_fail_or_die_hold_nobody_up(tmp_path: Path) -> None:
    good = {name: members.ensemble().members[name] for name in ("small", "wide")}
    # The first four train together: two of them fail or die in the first pass, while two go on.
    everybody = {"small": good["small"], "disagrees": members.disagrees, "deadly": members.deadly,
                 "wide": good["wide"], "raises": members.raises, "none": members.no_member,
                 "huge": partial(members.make, 8, 400), "loads": members.loads}  # fmt: skip
    rates = {name: [1000.0] for name in everybody}
    result = train(tmp_path, 2, Options(rates=rates, buffer=256, chunk=32), members=everybody, devices=4)
    told = {row.name: (row.status, row.epochs, row.why) for row in result.table}
    assert [told[name][:2] for name in (*good, "loads")] == [("trained", 2)] * 3, told["loads"]
    assert result.state.plan[0] == (0, {"small": 1, "disagrees": 1, "deadly": 1, "wide": 1})
    for name, complaint in (
        ("raises", "this factory is broken"), ("disagrees", "mat1 and mat2"), ("none", "returned a int"),
        ("deadly", r"died 3 times in one epoch \(SIGKILL\)"), ("huge", "400 samples does not fit"),
    ):  # fmt: skip
        assert told[name][0] == "failed"
        assert re.search(complaint, told[name][2]), told[name]
    assert result.best.name in {*good, "loads"}
    with pytest.raises(TrainingError, match="has not finished an epoch"):
        result.model("raises")
    # Alone or with others, in a larger or smaller buffer: the same samples in the same order make the same member.
    alone = train(tmp_path / "alone", 2, Options(rates={"small": [1.0]}, buffer=128, chunk=32),
                  members={"small": good["small"]})  # fmt: skip
    assert same(parts(alone, "small"), parts(result, "small"))


@brought("loops", "Ray Train", "a fleet's last batch of one sample under batch norm: `fleet.Member(…, drop_last=True)`")
def test_a_last_batch_of_one_sample(tmp_path: Path) -> None:
    everybody = {"alone": partial(members.normed, 57), "dropped": partial(members.normed, 57, True),
                 "nothing": partial(members.normed, 401, True)}  # fmt: skip
    rates = {name: [1000.0] for name in everybody}
    result = train(tmp_path, 1, Options(rates=rates, buffer=1024, chunk=32), members=everybody)
    why = {row.name: row.why for row in result.table}
    assert re.search(r"batches of 57 leave one of 400 samples.*drop_last=True", why["alone"]), why
    assert "drops all 400 samples" in why["nothing"]
    assert parts(result, "dropped")["history"][0]["samples"] == 399


def test_dropped_samples_are_those_of_one_worker(tmp_path: Path) -> None:
    one, two = (
        train(tmp_path / str(devices), 1, Options(rates={"plain": [1.0, 1.9]}, buffer=256, chunk=32), devices=devices,
              members={"plain": partial(members.plain, 57, drop_last=True)})
        for devices in (1, 2)
    )  # fmt: skip
    assert two.state.plan[0] == (0, {"plain": 2})
    assert [parts(each, "plain")["history"][0]["samples"] for each in (one, two)] == [399, 399]
    pairs = zip(one.model("plain").parameters(), two.model("plain").parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)


def test_what_a_broken_sample_leaves_is_kept(tmp_path: Path) -> None:
    train(tmp_path, 1)
    (tmp_path / "code.json").unlink()
    with pytest.raises(DataError, match="sample 0 of the training set"):
        train(tmp_path, 2, transform=members.fails_always)
    (tmp_path / "code.json").unlink()
    assert {row.epochs for row in train(tmp_path, 1).table} == {1}


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="member 'bad': its factory cannot be sent"):
        train(tmp_path, members={"bad": lambda: members.make()})
    for devices, complaint in ((0, "at least one"), ([], "at least one"), ("tpu", "number of CPU slots"),
                               (["cpu", "warp:1"], "devices"), (["cuda:99"], "no cuda:99")):  # fmt: skip
        with pytest.raises(ConfigError, match=complaint):
            train(tmp_path, devices=devices)
    with pytest.raises(ConfigError, match="without members"):
        members.ensemble(members={})
    with pytest.raises(ConfigError, match="max_epochs is 0"):
        members.ensemble(0)
    with pytest.raises(ConfigError, match="validate is empty"):
        members.ensemble(validate=[])
    with pytest.raises(ConfigError, match="streams are not supported"):
        members.ensemble(dataset=iter(()))
    for wrong, complaint in (
        ({"members": {"small": members.make()}}, "member 'small' is a Member: give a function"),
        ({"members": {3: members.make}}, "a member has the name 3"), ({"metric": "accuracy"}, "metric is 'accuracy'"),
        ({"transform": 3}, "transform is 3"), ({"converged": None}, "converged is None"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=complaint):
            members.ensemble(**wrong)
    with pytest.raises(UnknownNameError, match="balancer 'evem'; did you mean 'even'"):
        Options(balance="evem")
    with pytest.raises(ConfigError, match="at least two chunks"):
        Options(buffer=100, chunk=64)
    with pytest.raises(ConfigError, match="no entry for member 'wide'"):
        train(tmp_path, options=Options(rates={"small": [1.0]}))
    with engine_state.locked(tmp_path), pytest.raises(ConfigError, match="another run uses"):
        train(tmp_path)


def test_another_run_in_the_same_directory_is_refused(whole: fleet.Result, caplog: pytest.LogCaptureFixture) -> None:
    assert train(whole.directory, 4).table == whole.table
    assert f"the fleet in {whole.directory} finished on 20" in caplog.text
    other = members.ensemble().members | {"small": partial(members.make, 9, 32)}
    with pytest.raises(CheckpointError, match=r"finished on 20.*its code has changed since \(member small\)"):
        train(whole.directory, 4, members=other)
    with pytest.raises(CheckpointError, match="seed = 0, but 7 was given"):
        train(whole.directory, 4, seed=7)
