"""The findings of ``uneven why`` about a run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """A worker's usual step, in seconds."""

    rank: int
    host: str
    data_s: float
    compute_s: float
    wait_s: float  # for other workers
    communicate_s: float

    @property
    def own_s(self) -> float:
        """Data and compute together."""
        return self.data_s + self.compute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A slow worker or link.

    ::

        for suspect in uneven.why.explain("runs/mine").suspects:
            print(suspect.rank, suspect.cause, suspect.evidence)
    """

    rank: int
    host: str  #: name of its machine
    late_s: float  #: seconds per step, more than the median of the others
    part_of_steps: float  #: 0 … 1, in which it was late
    cause: str  #: "quota", "stopped", "data", …: a key of ``CAUSES``
    evidence: str  #: one sentence with the figures
    shared: bool = False  #: the other workers of its machine lack processors as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Rare long steps with the same slow worker.

    ::

        for pause in uneven.why.explain("runs/mine").pauses:
            print(pause.rank, pause.steps, pause.cause)
    """

    rank: int  #: of the worker that the others waited for; ``EVERY_WORKER`` if all were slow together
    steps: int  #: number of long steps
    lost_s: float  #: in all of them
    part: float  #: of the whole time
    cause: str = ""  #: "checkpoint", "evaluation", …: a key of ``PAUSES``; "" if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change and its expected gain in throughput, from a simulation of the recorded run.

    ::

        best = max(found.remedies, key=lambda remedy: remedy.gain)
    """

    words: str  #: the change, for people
    gain: float  #: throughput with it ÷ throughput without
    least: float  #: the least gain of the simulations with other seeds
    most: float  #: the greatest of them
    command: str = ""  #: to apply it, if one command does


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer of ``uneven why``, from :func:`explain`.

    ::

        found = uneven.why.explain("runs/mine")
        print(found.step_s, [suspect.rank for suspect in found.suspects])
    """

    run: str  #: name of the run
    steps: int  #: number of steps that were judged
    step_s: float  #: seconds of the usual step
    workers: tuple[WorkerTimes, ...]  #: by rank
    suspects: tuple[Suspect, ...]  #: the latest first; empty if all workers are equally fast
    pauses: tuple[Pause, ...]  #: rare long steps
    bound: str  #: one sentence about the largest part of the time
    remedies: tuple[Remedy, ...] = ()  #: the greatest gain first
    note: str = ""  #: the reason if remedies or names are missing
    still: str = ""  #: where each worker is, if no step has ended for 10 s or more: one sentence


CAUSES = {
    "quota": "its control group's quota stops it",
    "contention": "other processes take its processors",
    "steal": "the hypervisor takes its processors",
    "stopped": "it is stopped from outside",
    "blocked": "it sleeps or blocks in its own code",
    "data": "it waits for its data",
    "batch": "its batches are heavier",
    "collection": "Python's garbage collector runs",
    "compilation": "torch.compile compiles again",
    "memory": "it lacks memory and reads pages from disk",
    "clock": "its processor runs at a lower clock rate",
    "heat": "its GPU is too hot and slows down",
    "gpu-clock": "its GPU runs at a lower clock rate",
    "pcie": "its GPU has a narrower PCIe connection",
    "processor": "its processor takes longer for the same work",
    "link": "its link is slow",
}

EVERY_WORKER = -1

PAUSES = {
    "checkpoint": "it writes a checkpoint",
    "evaluation": "it evaluates",
    "compilation": "torch.compile compiles",
    "collection": "Python's garbage collector runs",
    "writing": "it writes files",
}
