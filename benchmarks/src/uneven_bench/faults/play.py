"""A player of one fault in a real ``uneven run``. Launcher and workers are forks (:mod:`uneven_bench.forked.run`)."""

import json
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch

from uneven_bench.faults.cases import EPOCHS, HARMLESS, SERVED, SIGNALLED, TOGETHER, FaultCase
from uneven_bench.faults.judge import ENDS_WITHIN_S, Line, RunEnd, doubled, judge, once
from uneven_bench.forked.scripts import Script
from uneven_bench.harness.faulty import PlayedCase
from uneven_bench.harness.marked import marked_script, named, running, sweep

_STARTS_WITHIN_S = 120.0
_GONE_WITHIN_S = 5.0
_ENDLESS = 1_000_000  # epochs if the launcher gets a signal: workers that do not receive it would train on


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedFault(PlayedCase):
    """One fault, played. ``took_s``: the first run, from its start to its end."""

    case: FaultCase
    resumed: bool  # there was a checkpoint to resume from


def play(case: FaultCase, folder: Path) -> Generator[None, None, PlayedFault]:
    """Play a fault in this empty folder, as a generator: others may be played between two yields."""
    life = _Life(case, folder, 1)
    outcome = yield from life.outcome()
    wrong = judge(case, outcome)
    whole = outcome.code == 0 and len(outcome.finished) == case.workers and case.kind != "break"
    wrong += doubled(life.taken(), life.epochs, whole)
    said, newest = outcome.said, folder / "notes" / "state.pt"
    if newest.exists():
        saved = torch.load(newest)
        last = int(saved["cut"][0])
        second = _Life(case, folder, 2, epochs=max(EPOCHS, last + 1) if case.kind in SIGNALLED else EPOCHS)
        resumed = yield from second.outcome()
        said += f"\n--- resumed by {case.resumed} workers ---\n{resumed.said}"
        if resumed.code != 0:
            how = "did not end" if resumed.code is None else f"ended with exit code {resumed.code}"
            wrong.append(f"resumed by {case.resumed} workers from {saved['cut']}, it {how}")
        else:
            lost = outcome.struck and case.sync in SERVED and case.kind not in (*HARMLESS, *SIGNALLED)
            held = (
                list(_held(saved["model"]["used"][:, :, 0]))
                if case.sync in TOGETHER
                else [(epoch, samples) for epoch, _, samples in life.taken() if epoch < last]
            )
            wrong += once(held, second.taken(), second.epochs, lost=lost, anywhere=case.centred)
    return PlayedFault(
        case=case, struck=outcome.struck, resumed=newest.exists(), wrong=tuple(wrong), took_s=life.took_s, said=said
    )


def _held(used: torch.Tensor) -> Iterator[tuple[int, list[int]]]:
    for epoch, row in enumerate(used):
        if row.any():
            yield epoch, row.nonzero().flatten().tolist()


class _Life:
    """One run: the first with the fault, the second resumed and without it."""

    def __init__(self, case: FaultCase, folder: Path, life: int, epochs: int = 0) -> None:
        self._case = case
        self._life = life
        self._notes, self._work, self._temporary = (folder / name for name in ("notes", f"work-{life}", f"tmp-{life}"))
        for one in (self._notes, self._work, self._temporary):
            one.mkdir(exist_ok=True)
        self.epochs = epochs or (_ENDLESS if case.kind in SIGNALLED else EPOCHS)
        self._workers = case.workers if life == 1 else case.resumed
        self.took_s = 0.0

    def outcome(self) -> Generator[None, None, RunEnd]:
        """Run it to its end or to its time limit; none of its processes runs then."""
        with self._started() as script:
            began_s = time.monotonic()
            yield from self._awaited(script, began_s)
            self.took_s = time.monotonic() - began_s
            code = script.poll()
            script.kill()
            left: list[psutil.Process] = []
            until_s = time.monotonic() + _GONE_WITHIN_S + self._case.timeout_s * (code is not None and code < 0)
            while (left := list(running(self._work))) and code is not None and time.monotonic() < until_s:
                yield
            names = tuple(map(named, left))
            sweep(self._work)
            script.wait()
            said = script.printed()
        finished = (int(one.name.rpartition("-")[2]) for one in self._notes.glob(f"done-{self._life}-*"))
        places = (*self._temporary.iterdir(), *self._work.iterdir())
        return RunEnd(
            code=code,
            said=said,
            struck=self._struck_s() is not None,
            finished=tuple(sorted(finished)),
            processes=names if code is not None else (),
            files=tuple(sorted(one.name for one in places if one.name != "run")),
        )

    def taken(self) -> Iterator[Line]:
        for path in sorted(self._notes.glob(f"taken-{self._life}-*.jsonl")):
            for line in path.read_text().splitlines():
                yield tuple(json.loads(line))

    def _started(self) -> Script:
        case, first = self._case, self._life == 1
        balance = case.balance if first or not case.balance.startswith("static") else "even"
        servers = ["--servers", case.servers] if case.servers else []
        told = asdict(case) | {"life": self._life, "notes": str(self._notes), "epochs": self.epochs}
        told |= {} if first else {"kind": "none"}
        words = ["-m", "uneven_bench.forked.run", "run", "--nproc", self._workers, "--run-dir", "run", *servers]
        words += ["--sync", case.sync, "--balance", balance, "--timeout", case.timeout_s]
        words += ["-m", "uneven_bench.faults.script", json.dumps(told)]
        return marked_script(words, self._work, self._temporary, "uneven_bench.faults.script")

    def _awaited(self, script: Script, began_s: float) -> Generator[None]:
        while script.poll() is None:
            struck_s = self._struck_s()
            if struck_s is None:
                if time.monotonic() > began_s + _STARTS_WITHIN_S:
                    return
            elif time.time() > struck_s + self._case.timeout_s + ENDS_WITHIN_S:
                return
            yield

    def _struck_s(self) -> float | None:
        """Return the moment of the fault in Unix time."""
        try:
            return (self._notes / "struck").stat().st_mtime if self._life == 1 else None
        except FileNotFoundError:
            return None
