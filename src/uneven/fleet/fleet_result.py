"""Give access to a finished training: the table of members, their best weights, and the ensemble's predictions."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import nn

from uneven.errors import TrainingError, UnknownNameError, access
from uneven.fleet.engine.fleet_run import best_checkpoint
from uneven.fleet.engine.fleet_state import MemberState, RunState
from uneven.fleet.ensemble import Ensemble
from uneven.fleet.member import member_checkpoint
from uneven.fleet.pure.converge import Epoch
from uneven.journal.report.page import Page, PageTable
from uneven.journal.report.pure.draw import Figure, colour, layout, line
from uneven.journal.report.pure.figures import Span, gantt
from uneven.journal.report.track import LoggedValue, Tracker


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One row of the table of members."""

    rank: int  # 1 is the best; failed members come last
    name: str
    metric: float  # at the best epoch; NaN if there is none
    epochs: int  # number of trained epochs
    best_epoch: int  # from 1; 0 if there is none
    device_s: float  # seconds times devices that it held
    status: str  # "trained" or "failed"
    why: str  # the reason for its end
    checkpoint: Path | None  # of the best epoch, for `torch.load(…, weights_only=True)`; None if the member failed
    note: str = ""  # why it was not trained on more devices, if it could not be

    @property
    def reason(self) -> str:
        """The reason for its end and its note, in one line."""
        return "; ".join(text.splitlines()[-1] for text in (self.why, self.note) if text)


def ranked(ensemble: Ensemble, state: RunState, directory: Path) -> tuple[MemberRow, ...]:
    higher = ensemble.metric.higher_is_better
    found = []
    for name, member in state.members.items():
        best = member.history(higher).best + 1 if member.epochs else 0
        metric = member.epochs[best - 1].metric if best else math.nan
        trained = member.status == "trained"
        path = best_checkpoint(directory, ensemble, state, name) if trained else None
        found.append((name, metric, best, member, path))

    def order(one: tuple[str, float, int, MemberState, Path | None]) -> tuple[bool, float]:
        worth = one[1] if higher else -one[1]
        return one[3].status != "trained", -(worth if math.isfinite(worth) else -math.inf)

    found.sort(key=order)
    return tuple(
        MemberRow(rank, name, metric, len(one.epochs), best, one.device_s, one.status, one.why, path, one.note)
        for rank, (name, metric, best, one, path) in enumerate(found, 1)
    )


_GANTT_NOTE = (
    "A bar is a member on a device, from its first epoch with a group to its last. The dark part of its height is the "
    "share of the time in which it computed; the pale part waited for the shared samples or for the slower members. "
    "White is an unused device."
)


def page(table: Sequence[MemberRow], state: RunState, metric: str, directory: Path) -> str:
    """Return the report as HTML that needs no network; `table` has the best member first."""
    trained = sum(row.status == "trained" for row in table)
    made = Page("Ensemble", f"{len(table)} members trained on shared data, in {directory}.")
    made.cards(
        [
            (f"{trained} of {len(table)}", "members trained"),
            (f"{state.wall_s:,.0f} s", "took"),
            (str(len(state.plan)), "flotillas"),
            (f"{state.prepared:,}", "samples prepared"),
            (f"{state.preprocess_cpu_s:,.0f} s", "processor time for preparing"),
        ]
    )
    made.table("Members", _members(table, state, metric))
    epochs = {name: [one for one in member.epochs if one.flotilla] for name, member in state.members.items()}
    spans = stretches(epochs)
    if spans:
        rows = 1 + max(number for span in spans for number in span.devices)
        made.figure("The plan over time", gantt(spans, rows, max(span.end_s for span in spans)), _GANTT_NOTE)
    made.figure(f"{metric} over time", _curves(epochs, metric, over_time=True))
    made.figure("Training loss by epoch", _curves(epochs, "training loss", over_time=False))
    return made.html()


def stretches(epochs: Mapping[str, Sequence[Epoch]]) -> list[Span]:
    """Return one span per member and flotilla, with the devices it used. Pure. `epochs` are in order of time."""
    found = []
    for name, mine in epochs.items():
        for _, group in groupby(mine, lambda one: (one.flotilla, one.devices)):
            together = list(group)
            computed_s = sum(one.train_s + one.validate_s - one.waited_s for one in together)
            start_s, end_s = together[0].began_s, together[-1].ended_s
            found.append((start_s, end_s, name, together[0].devices, computed_s / max(end_s - start_s, 1e-9)))
    spans: list[Span] = []
    for start_s, end_s, name, count, computed in sorted(found):
        # The state holds only numbers of devices. Those of one machine are identical, so each member gets the lowest
        # free ones.
        taken = {number for span in spans if span.end_s > start_s for number in span.devices}
        free = [number for number in range(len(taken) + count) if number not in taken]
        spans.append(Span(name, tuple(free[:count]), start_s, end_s, min(1.0, max(0.0, computed))))
    return spans


def _members(table: Sequence[MemberRow], state: RunState, metric: str) -> PageTable:
    rows = []
    for row in table:
        epochs = state.members[row.name].epochs
        busy_s = sum(one.train_s + one.validate_s for one in epochs)
        waited = sum(one.waited_s for one in epochs) / busy_s if busy_s else 0.0
        reached = f"{row.metric:.4f}" if row.best_epoch else "–"
        rows.append(
            (
                row.name,
                reached,
                str(row.epochs),
                str(row.best_epoch or "–"),
                f"{row.device_s:.1f}",
                f"{waited:.0%}",
                f"{row.status}: {row.reason}",
            )
        )
    headings = ("member", metric, "epochs", "best epoch", "device·s", "waited for data", "")
    return PageTable(headings, rows, frozenset({0, 6}))


def _curves(epochs: Mapping[str, Sequence[Epoch]], title: str, *, over_time: bool) -> Figure:
    names = sorted(name for name, mine in epochs.items() if mine)  # the plan's order, so that colours are the same
    data = []
    for place, name in enumerate(names):
        mine = epochs[name]
        x = [one.ended_s if over_time else float(number) for number, one in enumerate(mine, 1)]
        y = [one.metric if over_time else one.train_loss for one in mine]
        data.append(line(x, y, name, colour(place, len(names)), marks=len(x) <= 40))
    return {"data": data, "layout": layout(title, x_title="training time, s" if over_time else "epoch")}


class Result:
    """The result of :func:`uneven.fleet.train`.

    Attributes:
        table: a row for each member, the best first, failed ones last.
        state: the state of the run, with histories and plans.
        directory: the directory of the run.
        ensemble: the members and their data.
    """

    def __init__(self, ensemble: Ensemble, state: RunState, directory: Path) -> None:
        self.state = state
        self.directory = directory
        self._ensemble = ensemble
        self._models: dict[str, nn.Module] = {}
        self.table: tuple[MemberRow, ...] = ranked(ensemble, state, directory)

    @property
    def metric(self) -> str:
        """The name of the metric that members are judged by."""
        return self._ensemble.metric.name

    def report(self, path: str | Path) -> None:
        """Write the HTML file ``path`` with the plan over time and every member's curves; it needs no network.

        Raises:
            ConfigError: it cannot be written there.
        """
        with access(f"write the report {path}"):
            Path(path).write_text(page(self.table, self.state, self.metric, self.directory), encoding="utf-8")

    def track(self, tool: Tracker) -> None:
        """Log each member as a run of a tracking tool, by epoch. Times count from the start of the training.

        Args:
            tool: see :class:`~uneven.journal.report.track.Tracker`.

        Raises:
            ConfigError: the tool cannot write.
        """
        for row in self.table:
            epochs = self.state.members[row.name].epochs
            run = tool.begin(row.name, {"member": row.name}, group=self.directory.resolve().name)
            points: list[LoggedValue] = []
            for number, one in enumerate(epochs, 1):
                values = {self.metric: one.metric, "training loss": one.train_loss, "devices": float(one.devices)}
                values |= {"train_s": one.train_s, "waited_s": one.waited_s}
                points += [LoggedValue(name, value, number, one.ended_s) for name, value in values.items()]
            run.add(points)
            run.end({f"best/{self.metric}": row.metric} if math.isfinite(row.metric) else {})

    @property
    def failed(self) -> tuple[MemberRow, ...]:
        """The members that failed, with the reason."""
        return tuple(row for row in self.table if row.status == "failed")

    @property
    def best(self) -> MemberRow:
        """The best trained member.

        Raises:
            TrainingError: no member was trained.
        """
        if self.table[0].status != "trained":
            raise TrainingError(f"no member was trained; {self.table[0].name!r}: {self.table[0].why}")
        return self.table[0]

    def model(self, name: str) -> nn.Module:
        """Return the model of member ``name`` with the weights of its best epoch, in evaluation mode, on the CPU.

        Raises:
            UnknownNameError: the member is unknown.
            TrainingError: it finished no epoch.
        """
        if name not in self._ensemble.members:
            raise UnknownNameError("member", name, self._ensemble.members)
        if name not in self._models:
            path = best_checkpoint(self.directory, self._ensemble, self.state, name)
            if path is None:
                raise TrainingError(f"member {name!r} has not finished an epoch: {self.state.members[name].why}")
            saved = member_checkpoint.FILES.read(path)
            # The factory draws first weights; the caller's random numbers must not depend on that.
            before = torch.get_rng_state()
            made = self._ensemble.members[name]().model
            torch.set_rng_state(before)
            made.load_state_dict(saved["model"])
            self._models[name] = made.eval()
        return self._models[name]

    @torch.no_grad()
    def predict(
        self,
        *inputs: torch.Tensor,
        members: Iterable[str] | None = None,
        through: Callable[[Any], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Return the mean of the members' outputs, each with the weights of its best epoch.

        Args:
            inputs: a batch, as a model takes it: tensors of shape (n, …).
            members: names; by default all trained members.
            through: applied to each output before the mean; ``lambda z: z.softmax(-1)`` averages the probabilities of
                classifiers.

        Returns:
            The shape of one member's output.

        Raises:
            TrainingError: no member was trained.
            UnknownNameError: a member does not exist.
        """
        names = [row.name for row in self.table if row.status == "trained"] if members is None else list(members)
        if not names:
            raise TrainingError("no member was trained, so predict() is unavailable: see result.table")
        answers = [self.model(name)(*inputs) for name in names]
        return torch.stack([answer if through is None else through(answer) for answer in answers]).mean(0)

    def __str__(self) -> str:
        lines = [f"{'':>3} {'member':<24} {self._ensemble.metric.name:>10} {'epochs':>6} {'device·s':>9}  "]
        for row in self.table:
            metric = f"{row.metric:.4f}" if row.best_epoch else "–"
            ended = f"{row.device_s:>9.1f}  {row.status}: {row.reason}"
            lines.append(f"{row.rank:>3} {row.name:<24} {metric:>10} {row.epochs:>6} {ended}")
        return "\n".join(line.rstrip() for line in lines)
