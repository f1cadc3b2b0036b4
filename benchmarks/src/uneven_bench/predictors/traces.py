"""Real traces and recorded runs as cases of ``uneven bench predictors``."""

import csv
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uneven import journal
from uneven.cluster.series import DATA_VARIABLE
from uneven.errors import JournalError
from uneven.policy.core.records import Record, StepRecord
from uneven_bench.harness.data import needed_file
from uneven_bench.predictors.cases import BASE_PER_S, READING_NOISE, WORKERS, Floats, PredictorCase, case_of

STRETCH = 4.3  # iterations of one sample of processor use; not a whole number, so changes fall into iterations
_NOISE = 0.03
_LEAST_FREE = 0.05
_MOST_JOB_ITERATIONS = 600
_LEAST_ITERATIONS = 20
_FALLBACK = "fallback.csv"
_USED = {"planetlab": "planetlab_cpu.npz", "google": "google2011_vm_cpu_mem.npz"}


def real(quick: bool = False) -> dict[str, PredictorCase]:
    """Return the mini-batch times and processor use in ``UNEVEN_DATA``, or a small shipped trace of the latter. Raises
    DataError: ``UNEVEN_DATA`` is set and the files are missing."""
    if not os.environ.get(DATA_VARIABLE):
        return {"ec2": of_use("ec2", _shipped())}
    used = {name: of_use(name, *_use(name)) for name in list(_USED)[: 1 if quick else None]}
    return {**_alibaba(1 if quick else 4), **used}


def use_traces() -> dict[str, Floats]:
    """Return name → processor use of four machines, ``(4, samples)``, 0 … 1, one sample in five minutes. Raises
    DataError: as :func:`real`."""
    given = bool(os.environ.get(DATA_VARIABLE))
    return {name: _use(name)[0] for name in _USED} if given else {"ec2": _shipped()}


def _shipped() -> Floats:
    with resources.files("uneven_bench.predictors").joinpath(_FALLBACK).open(encoding="utf-8") as file:
        rows = np.array([[float(cell) for cell in row] for row in list(csv.reader(file))[1:]])
    use: Floats = rows.T / 100.0
    return use


def of_use(name: str, use: Floats, memory: Floats | None = None, seed: int = 0) -> PredictorCase:
    """Return workers on nodes with other loads: v = v₀ (1 − use in the iteration), and noise. ``use``: ``(workers,
    samples)``, 0 … 1, each lasting 4.3 iterations; ``memory``: the same of memory."""
    rng = np.random.default_rng([seed, 5])
    samples = use.shape[1]
    fine = 20  # parts of an iteration
    at = np.arange(int(samples * STRETCH) * fine) / (fine * STRETCH)
    inside = use[:, at.astype(int)].reshape(len(use), -1, fine)
    during, late = inside.mean(axis=2), inside[:, :, fine // 2 :].mean(axis=2)
    base = np.resize(np.array(BASE_PER_S), len(use))[:, None]
    speeds = base * np.maximum(1.0 - during, _LEAST_FREE) * np.exp(rng.normal(0.0, _NOISE, during.shape))
    read = np.clip(late + rng.normal(0.0, READING_NOISE, late.shape), 0.0, 1.0)
    held = None if memory is None else memory[:, at.astype(int)].reshape(len(use), -1, fine)[:, :, -1]
    return case_of(name, "real", speeds, read, held)


def _alibaba(jobs: int) -> dict[str, PredictorCase]:
    """Return mini-batch times of the workers of four jobs on shared GPUs; their nodes are unknown."""
    with np.load(needed_file("traces", "alibaba2020_minibatch_time.npz")) as file:
        cases = {}
        for job in range(1, jobs + 1):
            worker, times = file[f"job{job}_worker"], file[f"job{job}_batch_time_norm"].astype(float)
            rows = [times[worker == one] for one in np.unique(worker)]
            length = min(_MOST_JOB_ITERATIONS, *(len(row) for row in rows))
            cases[f"alibaba {job}"] = case_of(f"alibaba {job}", "real", 64e3 / np.stack([row[:length] for row in rows]))
        return cases


def _use(name: str) -> tuple[Floats, Floats | None]:
    """Return the use of processor and, if it was recorded, of memory."""
    with np.load(needed_file("traces", _USED[name])) as file:
        use = file["cpu_percent"].astype(float) / 100.0
        memory = file["mem_percent"].astype(float) / 100.0 if "mem_percent" in file else None
    rows = _lively(use)
    return use[rows], None if memory is None else np.minimum(memory[rows], 1.0)


def _lively(use: Floats) -> npt.NDArray[np.intp]:
    """Choose a few series by a fixed seed, of those that vary by 15 points or more and are not always busy."""
    fit = np.flatnonzero((use.std(axis=1) > 0.15) & (use.mean(axis=1) < 0.6))
    return np.sort(np.random.default_rng(0).choice(fit, WORKERS, replace=False))


def recorded(run: Path, name: str | None = None) -> PredictorCase:
    """Return a run's journal as a case ``name``: the iterations that all ranks recorded, with their predictors'
    readings, if any. ``run``: directory of a real, an emulated or a simulated run. Raises JournalError: no journal, or
    fewer than 20 common iterations."""
    rows = common_steps(run, journal.read(run).ranks)
    speeds, samples, cpu, memory = [], [], [], []
    for its in rows.values():
        speeds.append([one.batch / (one.data_s + one.compute_s + one.transfer_s) for one in its])
        samples.append([one.batch for one in its])
        cpu.append([one.others for one in its])
        memory.append([one.memory for one in its])
    case = case_of(name or run.name, "recorded", np.array(speeds), np.array(cpu, float), np.array(memory, float))
    return replace(case, samples=np.array(samples))


def common_steps(run: Path, ranks: Mapping[int, Iterable[Record]]) -> dict[int, list[StepRecord]]:
    """Return rank → its steps with samples, of the iterations that all ranks recorded. Raises JournalError: fewer than
    20 of them."""
    steps = {
        rank: {one.iteration: one for one in records if isinstance(one, StepRecord) and one.batch > 0}
        for rank, records in ranks.items()
    }
    common = sorted(set.intersection(*(set(of_rank) for of_rank in steps.values()))) if steps else []
    if len(common) < _LEAST_ITERATIONS:
        raise JournalError(
            f"{run}: {len(common)} iterations of every rank are too few to score: record at least {_LEAST_ITERATIONS}"
        )
    return {rank: [steps[rank][iteration] for iteration in common] for rank in sorted(steps)}
