"""The training script of ``uneven bench faults``, with a fault in one worker. Its argument is JSON."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import uneven
from uneven.runtime.messages.keys import SERVER, address
from uneven.runtime.world import discover
from uneven_bench.faults.cases import BATCH, MOST_EPOCHS, SAMPLES, SIGNALLED
from uneven_bench.harness.witness import Witness, await_notes, begin, journal_at, numbered

_MEET_WITHIN_S = 60.0
_STEP_S = 0.005
_LATE_S = 1.5
_LONGEST_S = 100.0  # a worker ends itself after this time


class Fault:
    """The fault of this worker, and its moment. ``told``: the case's fields; "none" as ``kind`` is no fault; ``notes``:
    folder for the workers' notes to the bench."""

    def __init__(self, told: dict[str, Any], rank: int, run: Path, notes: Path) -> None:
        self._told = told
        self._rank = rank
        self._run = run
        self._notes = notes
        self._mine = told["kind"] != "none" and rank == told["rank"]
        self.step = 1
        self._times = 0

    def at(self, moment: str) -> str:
        """Strike at the right moment, and return the kind of a fault that the caller must apply."""
        if not self._mine or moment != self._told["moment"]:
            return ""
        if moment in ("evaluated", "save"):
            self._times += 1
            due = self._times >= self._told["step"]
        else:
            due = moment not in ("batch", "forward", "backward", "step") or self.step >= self._told["step"]
        if not due:
            return ""
        self._mine = False
        (self._notes / "struck").touch()
        return self._strike(self._told["kind"])

    def spoils(self) -> bool:
        """Return whether a checkpoint is useless: others have stepped on a NaN, or train without end."""
        return self._told["kind"] in (*SIGNALLED, "nan") and (self._notes / "struck").exists()

    def _strike(self, kind: str) -> str:
        match kind:
            case "kill" | "segv" | "term" | "stop":
                os.kill(os.getpid(), getattr(signal, f"SIG{kind.upper()}"))
            case "raise":
                raise RuntimeError("a fault of the bench")
            case "exit-3":
                sys.exit(3)
            case "exit-0":
                sys.exit()
            case "os-exit-0":
                os._exit(0)
            case "late":
                time.sleep(_LATE_S)
            case "sleep":
                time.sleep(_LONGEST_S)
                os._exit(99)
            case "shard":
                shard = address(self._run / SERVER, 0)
                assert shard is not None
                os.kill(shard.pid, signal.SIGKILL)
            case "journal-full" | "journal-none":
                journal_at(self._run, self._rank, "/dev/full" if kind == "journal-full" else "/dev/full/no")
            case "markers":
                (self._run / f"expendable-{self._rank}.part").mkdir()
        if kind in SIGNALLED:
            os.kill(os.getppid(), getattr(signal, f"SIG{kind.removeprefix('launcher-').upper()}"))
        return kind


class Numbered(Dataset[Any]):
    """Samples that know their index, and whose reading may be a fault's moment."""

    def __init__(self, fault: Fault) -> None:
        self._samples = numbered(SAMPLES)
        self._fault = fault

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        self._fault.at("batch")
        return self._samples[index]


def batches(loader: Any, ahead: bool) -> Iterator[Any]:
    """Yield the batches of an epoch; with ``ahead``, each after the next one is fetched."""
    if ahead:
        yield from (batch for batch, _ in pairwise(chain(loader, [None])))
    else:
        yield from loader


def main(told: dict[str, Any]) -> None:
    began_s, notes, rank = time.monotonic(), Path(told["notes"]), discover().rank
    begin()
    run = discover().run_directory
    assert run is not None
    fault = Fault(told, rank, run, notes)
    fault.at("import")
    _meet(told, rank, notes)
    session = uneven.Session(nonfinite="raise")
    fault.at("setup")
    model = Witness(MOST_EPOCHS, SAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session.setup(model, optimizer)
    loader = session.loader(Numbered(fault), BATCH)
    newest = notes / "state.pt"
    if told["life"] > 1:
        saved = torch.load(newest)
        model.load_state_dict(saved["model"])
        session.load_state_dict(saved["session"])

    def save(epoch: int, iteration: int) -> None:
        with session.evaluation_model():
            fault.at("evaluated")
            if rank == 0 and told["life"] == 1 and not fault.spoils():
                state = {"cut": (epoch, iteration), "model": model.state_dict(), "session": session.state_dict()}
                half = notes / "half.pt"
                torch.save(state, half)
                fault.at("save")
                half.replace(newest)

    fault.at("first")
    with (notes / f"taken-{told['life']}-{rank}.jsonl").open("w", buffering=1) as taken:
        for epoch in range(loader.epoch, told["epochs"]):
            for iteration, (x, y, index) in enumerate(batches(loader, told["ahead"]), start=1):
                taken.write(json.dumps([epoch, iteration, index.tolist()]) + "\n")
                loss = model(x, y, epoch, index)
                (loss * (float("nan") if fault.at("forward") == "nan" else 1.0)).backward()
                fault.at("backward")
                optimizer.step()
                optimizer.zero_grad()
                if fault.at("step") == "break":
                    break
                fault.step += 1
                if told["save_every"] and iteration % told["save_every"] == 0:
                    save(epoch, iteration)
                if time.monotonic() - began_s > _LONGEST_S:
                    os._exit(98)
                time.sleep(_STEP_S)
            if not told["save_every"]:
                save(epoch + 1, 0)
    fault.at("last")
    session.close()
    fault.at("closed")
    (notes / f"done-{told['life']}-{rank}").touch()


def _meet(told: dict[str, Any], rank: int, notes: Path) -> None:
    """Wait for all workers, except one with an earlier fault, so that no time-out runs while one starts."""
    (notes / f"here-{told['life']}-{rank}").touch()
    absent = {told["rank"]} if told["moment"] == "import" else set()
    awaited = [notes / f"here-{told['life']}-{other}" for other in set(range(discover().size)) - absent]
    await_notes(awaited, _MEET_WITHIN_S)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
