"""The faults of ``uneven bench faults`` and their expected ends. Pure: a seed and a number make a case.

``docs/how-to/own-pace.md`` promises what a policy does after a death, and :func:`expected` is the same as code.
Its None means that no page promises more than an end of the run.
"""

from dataclasses import dataclass
from random import Random

TOGETHER = ("bsp", "local:every=3", "ma:every=2", "bmuf:every=3", "diloco:every=4", "shuffle", "hierarchical:every=2")
"""Policies whose workers take the same steps; a death ends the run."""

STREAMED = ("shadow:ma", "shadow:bmuf")  # policies at each worker's own pace; a death still ends the run
SERVED = ("asp", "ssp:staleness=2", "easgd:every=2", "shadow:easgd", "shadow:asp", "backup:spares=1")
"""Policies through a parameter server; the others continue without a worker that dies."""

POLICIES = ("bsp",) * 4 + TOGETHER[1:] + STREAMED + SERVED
SAMPLES, BATCH, EPOCHS = 102, 12, 3
ITERATIONS, MOST_EPOCHS = 9, 8  # nine iterations an epoch; the last has six samples, at least one for each worker
LOOP = ("batch", "forward", "backward", "step")
"""While samples are read; before and after the backward pass; after the optimizer's step."""

BEFORE = ("import", "setup", "first")  # before the session, before its setup, before the first batch
AFTER = ("last", "closed")  # after the last step, after ``session.close()``
SAVING = ("evaluated", "save")  # inside ``session.evaluation_model()``, and there with half a checkpoint written

KINDS: dict[str, tuple[str, ...]] = {
    "none": ("import",),
    "late": ("setup", *LOOP, "evaluated"),
    "kill": (*BEFORE, *LOOP, *SAVING, *AFTER),
    "segv": LOOP,
    "term": ("first", *LOOP),
    "raise": (*BEFORE, *LOOP, *SAVING, *AFTER),
    "exit-3": (*BEFORE, *LOOP, *SAVING, *AFTER),
    "exit-0": (*BEFORE, *LOOP, *SAVING),
    "os-exit-0": (*BEFORE, *LOOP, *SAVING),
    "break": ("step",),
    "nan": ("forward",),
    "stop": (*BEFORE, *LOOP, *SAVING, "last"),
    "sleep": (*BEFORE, *LOOP, *SAVING),
    "launcher-term": ("import", *LOOP, "evaluated"),
    "launcher-int": ("import", *LOOP, "evaluated"),
    "launcher-kill": ("import", *LOOP, "evaluated"),
    "shard": LOOP,
    "journal-full": ("import",),
    "journal-none": ("import",),
    "markers": ("import",),
}
"""Kind → its possible moments. ``late`` sleeps for less than the time-out and ``sleep`` for longer; ``stop`` is SIGSTOP
and ``break`` leaves the loop of one epoch; ``journal-full`` is a disk without room, ``journal-none`` a journal that
cannot be opened, ``markers`` no room for the files that report a cause of death to the launcher."""

CODES = {"kill": 137, "segv": 139, "term": 143, "raise": 1, "exit-3": 3}  # kinds of death → exit code of the run
SIGNALLED = {"launcher-term": ("SIGTERM", 143), "launcher-int": ("SIGINT", 130), "launcher-kill": ("", 137)}
"""Signal to the launcher → its message, and its exit code."""

HARMLESS = ("none", "late", "shard", "journal-full", "markers")
QUIET = ("exit-0", "os-exit-0")
HANGING = ("stop", "sleep")

SHORT_S, LONG_S = 8.0, 30.0  # time-outs: for cases with a wait for it, and for the others


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """One fault."""

    seed: int
    number: int  # the case's place among those of a seed
    sync: str
    balance: str
    workers: int
    servers: int  # processes of the parameter server; 0 is a thread of rank 0
    kind: str
    rank: int  # the culprit, which also sends the signals to others
    moment: str
    step: int  # the culprit's step, counted from 1 over the run; for moments of :data:`SAVING`, of the saves
    save_every: int  # iterations between checkpoints, in the loop; 0 saves after each epoch
    ahead: bool  # the loop fetches the next batch before it steps on this one
    resumed: int  # workers that continue from the newest checkpoint

    @property
    def timeout_s(self) -> float:
        """The value of ``--timeout``."""
        waited = self.kind in (*QUIET, *HANGING, "break") or self.sync in SERVED
        return SHORT_S if waited else LONG_S

    @property
    def centred(self) -> bool:
        """True if a checkpoint holds a centre, and so only the steps until the last exchange."""
        return self.sync.startswith(("bmuf", "diloco"))

    @property
    def words(self) -> str:
        place = f"{self.moment} {self.step}" if self.moment in (*LOOP, *SAVING) else self.moment
        more = f" --servers {self.servers}" * bool(self.servers) + ", one batch ahead" * self.ahead
        saved = f", saves every {self.save_every}" * bool(self.save_every)
        return f"{self.sync} {self.balance} ×{self.workers}{more}{saved}: rank {self.rank} {self.kind} at {place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected end of a case."""

    codes: tuple[int, ...] | None  # valid exit codes; None for any
    named: str  # text in the last message; "" for nothing, and "rank" for the culprit
    others: bool | None  # the other workers come to the end of the script; None if either is right
    leftovers: tuple[str, ...] = ()  # prefixes of files that may stay in the temporary directory


def draw(seed: int, number: int) -> FaultCase:
    """Draw the case with this number; it depends on no other one."""
    dice = Random(f"{seed}/{number}")
    kind = dice.choice(tuple(KINDS))
    sync = dice.choice(SERVED if kind in ("shard", "markers") else POLICIES)
    workers = dice.choice((2, 2, 3, 4))
    moment = dice.choice(KINDS[kind])
    together = sync in TOGETHER
    balances = ("even", "lb-bsp", f"static:shares={'/'.join(map(str, range(workers, 0, -1)))}")
    times = 2 if moment in SAVING else 15 if together else 6
    step = dice.randint(1, times)
    if kind == "break" and step == ITERATIONS:
        step += 1  # at the end of an epoch no iteration is left to skip
    return FaultCase(
        seed=seed,
        number=number,
        sync=sync,
        balance=dice.choice(balances) if together else "even",
        workers=workers,
        servers=dice.choice((1, 2) if kind == "shard" else (0, 0, 1, 2)) if sync in SERVED else 0,
        kind=kind,
        rank=0 if moment == "save" else dice.randrange(workers),
        moment=moment,
        step=step,
        save_every=dice.choice((0, 1, 2, 3)) if together else 0,
        ahead=sync == "bsp" and dice.random() < 0.3,
        resumed=dice.choice((2, 3, 5)),
    )


def borne(case: FaultCase) -> bool:
    """Return whether the others can continue after the culprit's death: from the first batch to the session's end."""
    begun = case.moment not in (*BEFORE, "closed") and (case.moment, case.step) != ("batch", 1)
    return case.sync in SERVED and begun and not _held(case)


def expected(case: FaultCase) -> Expected:
    """Return the expected end of the run, if the fault has struck."""
    over = case.moment in AFTER
    if case.kind in HARMLESS:
        return Expected(codes=(0,), named="", others=True)
    if case.kind in SIGNALLED:
        named, code = SIGNALLED[case.kind]
        left = ("uneven-",) if case.kind == "launcher-kill" else ()
        return Expected(codes=(code,), named=named, others=False, leftovers=left)
    kept = _kept(case)
    if case.kind == "journal-none":
        return Expected(codes=(1,), named="rank", others=False)
    if case.kind in CODES or case.kind == "nan":
        code = CODES.get(case.kind, 1)
        if borne(case):
            return Expected(codes=(code if case.rank == 0 else 0,), named="rank", others=True, leftovers=kept)
        return Expected(codes=(code,), named="rank", others=None if over else False, leftovers=kept)
    if case.kind == "break":
        if case.sync in TOGETHER:
            return Expected(codes=(1,), named="rank", others=False)
        return Expected(codes=(0,), named="", others=True)
    if case.kind == "exit-0" and case.sync in SERVED and case.moment not in ("import", "setup"):
        return Expected(codes=(0,), named="", others=True)  # it closes its session, and takes no more samples
    if borne(case):  # a hang or an exit with 0 in the middle is a lost worker
        return Expected(codes=None, named="rank", others=None, leftovers=kept)
    # A hanging worker may only be slow, and an exit with 0 has no message, so under policies at own pace the others
    # continue.
    free = case.kind in (*HANGING, "os-exit-0") and case.sync in SERVED and not _held(case)
    others = None if over or free else False
    return Expected(codes=None if over else tuple(range(1, 256)), named="rank", others=others, leftovers=kept)


def _held(case: FaultCase) -> bool:
    """Return whether the parameter server is a thread of the culprit."""
    return case.sync in SERVED and case.rank == 0 and not case.servers


def _kept(case: FaultCase) -> tuple[str, ...]:
    return ("uneven-copy-",) if _held(case) else ()
