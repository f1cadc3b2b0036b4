"""``uneven.fleet.train``."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from uneven.fleet.engine.fleet_options import Options, RunSnapshot, Show
from uneven.fleet.engine.fleet_run import code_in, run
from uneven.fleet.engine.hosts import member_of
from uneven.fleet.ensemble import Ensemble
from uneven.fleet.fleet_result import Result
from uneven.journal.report.console import Console
from uneven.runtime.jobs.begun import DefaultFolder, folder_for
from uneven.runtime.jobs.devices import Devices

SILENT_S = 10.0  # a longer silence is shown


@contextmanager
def live(metric: str, console: Console | None = None) -> Iterator[Show]:
    """Show a table on the terminal, or log lines if the output is not a terminal."""
    console = console or Console(stderr=True)  # standard output stays free for results in a pipe
    if not console.is_terminal:
        yield _LogLines(metric, console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        yield lambda moment: screen.update(page(moment, metric), refresh=True)


class _LogLines:
    def __init__(self, metric: str, console: Console) -> None:
        self._metric = metric
        self._console = console
        self._epochs: dict[str, int] | None = None
        self._failed: set[str] = set()
        self._silent: dict[str, float] = {}

    def __call__(self, moment: RunSnapshot) -> None:
        members = moment.state.members
        # Epochs of earlier starts are not logged again.
        known = self._epochs if self._epochs is not None else {name: len(one.epochs) for name, one in members.items()}
        for name, member in members.items():
            for number, epoch in enumerate(member.epochs[known[name] :], known[name] + 1):
                self._say(f"{name}: epoch {number} of {moment.max_epochs}, {self._metric} {epoch.metric:.4f}")
            if member.status == "failed" and name not in self._failed:
                self._failed.add(name)
                self._say(f"{name}: failed: {member.why.splitlines()[-1]}")
        self._epochs = {name: len(one.epochs) for name, one in members.items()}
        talks = {who for who, silence in moment.quiet.items() if silence.for_s < SILENT_S}
        self._silent = {who: for_s for who, for_s in self._silent.items() if who in moment.quiet and who not in talks}
        for who, silence in moment.quiet.items():
            if silence.for_s >= self._silent.setdefault(who, SILENT_S):
                # The next line about the same silence follows after twice the time, so that the log stays short.
                self._silent[who] *= 2.0
                self._say(f"{who}: {silence}")

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def page(moment: RunSnapshot, metric: str) -> Group:
    """Return the table of members with their current work, the fill of the buffer and the members that delay others."""
    state = moment.state
    held = {member_of(reader) for reader in moment.ledger.holding()}
    table = Table(box=None, pad_edge=False)
    for heading, justify in (("member", "left"), ("devices", "right"), ("samples/s", "right"), ("epoch", "right"),
                             (metric, "right"), ("left at most", "right"), ("", "left")):  # fmt: skip
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for name, member in state.members.items():
        last = member.epochs[-1] if member.epochs else None
        taken = moment.running.get(name, 0)
        rate = f"{last.samples / max(last.train_s, 1e-9):,.0f}" if last else ""
        to_go = (moment.max_epochs - len(member.epochs)) * (last.train_s + last.validate_s) if last else 0.0
        does: str = member.status if member.status != "waiting" else "trains" if taken else "waits"
        if name in held:
            does = "trains; the others wait for it"
        if name in moment.quiet and moment.quiet[name].for_s > SILENT_S:
            does = str(moment.quiet[name])
        if member.status == "failed":
            does = f"failed: {member.why.splitlines()[-1]}"
        left = f"{to_go:.0f} s" if to_go and member.status == "waiting" else ""
        done, worth = f"{len(member.epochs)}/{moment.max_epochs}", f"{last.metric:.4f}" if last else ""
        table.add_row(name, str(taken or ""), rate, done, worth, left, does)
    makers = f"{moment.preprocessors} preprocessor{'s' if moment.preprocessors > 1 else ''}"
    foot = Text(
        f"flotilla {len(state.plan)}, pass {state.passes + 1} · buffer {moment.ledger.fill:.0%} full · {makers} · "
        f"{state.prepared:,} samples prepared · {state.wall_s:.0f} s"
    )
    for who, silence in moment.quiet.items():
        if silence.for_s > SILENT_S and who not in state.members:
            foot.append(f"\n{who}: {silence}")
    return Group(table, foot)


_DIRECTORY = DefaultFolder("runs/fleet")


def train(
    ensemble: Ensemble,
    *,
    devices: Devices = "auto",
    directory: str | Path = _DIRECTORY,
    options: Options | None = None,
    engine: str = "local",
    progress: bool = True,
) -> Result:
    """Train every member, several at a time, on shared data.

    It may be stopped at any moment, by Ctrl-C or by ``kill -9``. The same call continues at the end of the last pass
    over the data and trains no member twice. A member that fails does not delay the others. No member is trained
    further with changed code.

    Args:
        ensemble: the members and their data.
        devices: "auto" for every GPU, or one CPU slot per core if there is none; a number of CPU slots; or names of
            devices. A member with several devices trains in as many processes. With Ray, ``["cuda"] * 4`` gives a kind
            and a number.
        directory: for checkpoints and ``state.json``; by default ``runs/fleet``, with a number appended if other code
            has finished a run there.
        options: buffer, planning and preprocessing; see :class:`~uneven.fleet.engine.fleet_options.Options`.
        engine: "local", or "ray" for the devices of a Ray cluster (extra ``ray``).
        progress: show the progress on the terminal.

    Returns:
        The table of members, their best weights, and the ensemble's predictions.

    Raises:
        ConfigError: devices, factories, data or options cannot be used; raised before training starts.
        UnknownNameError: the engine does not exist.
        TrainingError: every device was lost with its machine.
        DataError: the named sample cannot be read or transformed; what was trained before is kept.
        CheckpointError: the directory holds a run that was started with something else, or with other code.
    """
    where = folder_for(directory, "fleet", code_in(ensemble))
    with live(ensemble.metric.name) if progress else nullcontext(lambda moment: None) as show:
        state = run(ensemble, devices, where.absolute(), options or Options(), show, engine)
    return Result(ensemble, state, where)
