"""The faults of ``uneven bench machines`` and their expected ends, as ``docs/limits.md`` promises them. Pure: a seed
and a number make a case."""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

HOSTS = STORE = 3  # hosts with a worker each; a fourth one keeps the store of an elastic run
SAMPLES, BATCH, EPOCHS = 96, 12, 3
SYNCS = ("bsp", "local:every=3", "shadow:ma", "asp", "decoupled:every=4", "geo")
SERVED = ("asp", "decoupled:every=4")  # the other workers continue without one that is lost, elastic or not
UNSENT = {"decoupled:every=4": 4}  # policies that lose movement that is not sent → steps between two messages

OF_LINES = ("cut", "blip", "loss", "stall")
OF_DISKS = ("full-journal", "full-save", "hang-journal", "hang-save")
KINDS = ("kill", "die", *OF_LINES, *OF_DISKS, "clock-ahead", "clock-back")
"""``kill``: the worker; ``die``: all processes of the host and its link; ``cut``: the link, until long after the limit;
``blip``: the link, for a second; ``loss``: 5 % of the packets, from then on; ``stall``: packets wait for 20 s;
``full-…``: the disk with the journal, or with a checkpoint; ``hang-…``: a write to it never ends; ``clock-…``: an
hour."""

STALL_S, BLIP_S, CLOCK_S, LOSS = 20.0, 1.0, 3600, 0.05
ENDS_WITHIN_S = 25.0
"""Seconds beyond the limits of the run: the rest of the training, the roll call, and the ends of hanging processes."""
_LATER_S = 10.0  # seconds that lost packets cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault of one host, in its worker's ``step``; for the store's host, in host 0's."""

    kind: str
    host: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesCase:
    """One run with one fault or two."""

    seed: int
    number: int  # the case's place among those of a seed
    sync: str
    elastic: bool
    least: int  # workers of an elastic run
    patient: bool  # time-outs longer than a stall
    strikes: tuple[Strike, ...]

    @property
    def timeout_s(self) -> float:
        """The value of ``--timeout``; longer than ``--silence``."""
        return 30.0 if self.patient else 12.0 if self.lossy else 6.0

    @property
    def silence_s(self) -> float:
        """The value of ``--silence``."""
        # TCP doubles its wait with each lost packet: after four in a row it has been silent for 3 s.
        return 30.0 if self.patient else 8.0 if self.lossy else 3.0

    @property
    def lossy(self) -> bool:
        """True if a line loses packets."""
        return any(one.kind == "loss" for one in self.strikes)

    @property
    def served(self) -> bool:
        """True if the policy has a parameter server."""
        return self.sync in SERVED

    @property
    def workers(self) -> range:
        """The hosts with a worker: in an elastic run with a parameter server the store's host has one, too."""
        return range(HOSTS + (self.elastic and self.served))

    @property
    def words(self) -> str:
        how = f" --elastic {self.least}:{len(self.workers)}" if self.elastic else ""
        strikes = ", ".join(f"host {one.host} {one.kind} at step {one.step}" for one in self.strikes)
        return f"{self.sync}{how}, time-out {self.timeout_s:g} s: {strikes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesEnd:
    """The expected end of a case."""

    lost: tuple[int, ...]  # hosts that cannot train to the end
    through: bool  # the others come to the end of the script
    within_s: float  # after the last fault
    waits: tuple[int, ...]  # hosts whose launcher waits as long as its worker hangs


def draw(seed: int, number: int) -> MachinesCase:
    """Draw the case with this number; it depends on no other one."""
    dice = Random(f"machines/{seed}/{number}")
    sync = dice.choice(SYNCS)
    elastic = sync not in UNSENT and dice.random() < 0.5
    hosts = dice.sample(range(HOSTS + elastic), 2 if dice.random() < 0.2 else 1)
    step = dice.randint(2, 12)
    strikes = []
    for host in hosts:
        kind = dice.choice(KINDS if host < HOSTS else ("die", *OF_LINES, "clock-back"))
        # A checkpoint is saved at the end of the first epoch.
        strikes.append(Strike(kind=kind, host=host, step=min(step, 4) if kind.endswith("save") else step))
    # A parameter server counts a worker as gone after ten seconds.
    patient = any(one.kind == "stall" for one in strikes) and sync not in SERVED and dice.random() < 0.5
    return MachinesCase(
        seed=seed, number=number, sync=sync, elastic=elastic, least=1 if sync in SERVED else dice.choice((1, 2)),
        patient=patient, strikes=tuple(strikes),
    )  # fmt: skip


def expected(case: MachinesCase, late: Collection[int] = ()) -> MachinesEnd:
    """Return the expected end of the run. ``late``: hosts whose workers were not members yet."""
    kinds = {one.host: one.kind for one in case.strikes}
    ending = ["kill", "die", "cut", "full-save", "hang-save", "hang-journal"]
    ending += [] if case.patient else ["stall"]
    gone = tuple(sorted(host for host, kind in kinds.items() if kind in ending))
    stuck = tuple(host for host, kind in kinds.items() if kind.startswith("hang"))
    if case.elastic:
        # A worker that hangs and gives signs of life is waited for, until the time-out ends the run. torch.save stops
        # the whole process, heartbeats included.
        enough = len(set(case.workers) - {*gone, *late}) >= case.least
        through = STORE not in gone and enough and "hang-journal" not in kinds.values()
    else:
        through = not gone or (case.served and 0 not in gone)
    limits_s = [case.timeout_s, case.silence_s] if gone else [0.0]
    limit_s = max(*limits_s, STALL_S * ("stall" in kinds.values()))
    limit_s += _LATER_S * case.lossy
    if gone and case.served:
        limit_s += case.timeout_s + 10.0  # for a launcher that does not come, or a worker that may be idle
    # A blocked torch.save wakes threads that wait for Python's lock, and host 0 serves, so these do not look idle.
    busy = tuple(one for one in stuck if not case.served or kinds[one] == "hang-save" or one == 0)
    waits = () if case.elastic else busy
    return MachinesEnd(lost=gone, through=through, within_s=limit_s + ENDS_WITHIN_S, waits=waits)
