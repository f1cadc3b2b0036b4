"""Models that visit other sites, so that a policy can measure their loss of accuracy there (SkewScout)."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.policy.sync import TunedPolicy
from uneven.run.context.context import Context
from uneven.run.lines.line import Line
from uneven.run.lines.traffic import TrafficBook
from uneven.run.replicas.flat import Flat
from uneven.run.step.callback import Callback, CallbackContext, Step


class SiteEvaluation(Callback):
    """Let each site's model visit the next site at intervals, for ``sync="scout:…"``::

        def score(model):                       # on samples of this worker's own site
            with torch.no_grad():
                return float((model(x).argmax(1) == y).float().mean())

        session = uneven.Session(sync="scout:geo", callbacks=[uneven.SiteEvaluation(score)])

    Every ``period`` steps of the policy, the first worker of each site scores its own model, and then the mean of all
    sites' models or, with ``judge="copies"``, the model of another site. All workers receive the results. Only copies
    travel, so replicas do not change. Running statistics of batch norm are those of the scoring worker.

    Args:
        score: model → accuracy, 0 … 1, on some local training samples. It must not change the model or the random
            state.
    """

    def __init__(self, score: Callable[[nn.Module], float]) -> None:
        self._score = score
        self._policy: TunedPolicy | None = None

    def bind(self, policy: TunedPolicy, sites: dict[int, str], book: TrafficBook) -> None:
        """Connect the ``policy`` that receives the results, the ``sites`` by rank, and the ``book`` of traffic."""
        self._policy = policy
        self._book = book
        names = sorted(set(sites.values()))
        self._speakers = [min(rank for rank, site in sites.items() if site == name) for name in names]

    def attach(self, run: CallbackContext) -> None:
        self._run = run
        self._line: Line = run.lines.open("visits")
        self._flat = Flat([one for one in run.model.parameters() if one.requires_grad])
        self._counted = torch.zeros(2, dtype=torch.float64)

    def before_step(self, step: Step) -> None:
        """Score the models at the end of a period; the new setting applies from the next step on."""
        policy, sites = self._policy, len(self._speakers)
        if policy is None or sites < 2 or not step.iteration or step.iteration % policy.period:
            return
        speaks, means = step.rank in self._speakers, policy.judge == "mean"
        guest = self._mean(speaks) if means else self._neighbour(step.rank)
        told = torch.zeros(4, dtype=torch.float64)  # accuracies at home and of the guest, bytes on two kinds of lines
        if speaks:
            told[:2] = torch.tensor(self._scores(guest), dtype=torch.float64)
        now = torch.tensor([self._sent("entries "), self._sent("parameters")], dtype=torch.float64)
        told[2:] = now - self._counted
        self._counted = now
        # One sum reports everything: ranks that do not score add zeros.
        self._line.sum(told).wait()
        home, away, entries, parameters = told.tolist()
        whole = 2.0 * self._flat.size * (8 if self._flat.dtype is torch.float64 else 4) * policy.period
        share = entries / (whole * (sites - 1)) + parameters / (whole * max(1, len(step.members) - 1))
        share += (1 if means else sites / (2 * (sites - 1))) / policy.period  # the visits
        loss, before = (home - away) / sites, policy.setting
        after = policy.heard(step.iteration + 1, loss=loss, share=share)
        self._run.log("accuracy at home", home / sites)
        self._run.log("loss of the mean" if means else "loss away", loss)
        self._run.log("bytes of BSP's", share)
        if after != before:
            self._run.tell(
                "scout",
                f"{policy.knob} = {after:g} after {before:g}: models lose {100 * loss:.1f} points "
                f"{'when their mean is taken' if means else 'at other sites'}, and the bytes sent are "
                f"{100 * share:.1f} % of BSP's",
            )

    def _mean(self, speaks: bool) -> torch.Tensor:
        """Return the mean of all sites' models, shape (size,)."""
        vector = self._flat.read()
        vector.mul_(1 / len(self._speakers) if speaks else 0.0)
        self._line.sum(vector).wait()
        return vector

    def _neighbour(self, rank: int) -> torch.Tensor:
        """Return the model of the previous site on the first worker of a site, otherwise this worker's; shape
        (size,)."""
        guest = self._flat.read()
        if rank in self._speakers:
            place, own = self._speakers.index(rank), guest.clone()
            sent = self._line.send(own, self._speakers[(place + 1) % len(self._speakers)])
            self._line.receive(guest, self._speakers[place - 1]).wait()
            sent.wait()
        return guest

    def _scores(self, guest: torch.Tensor) -> tuple[float, float]:
        """Score this site's own model and the guest, of shape (size,)."""
        own, model = self._flat.read(), self._run.model
        home = self._score(model)
        try:
            self._flat.write(guest)
            return home, self._score(model)
        finally:
            self._flat.write(own)

    def _sent(self, line: str) -> float:
        """Return the bytes that this worker has sent on lines with this prefix, except inside its site."""
        return float(self._book.sent_bytes(lambda name: name.startswith(line) and " inside " not in name))


def bind_site_evaluations(context: Context, parts: Sequence[Callback]) -> None:
    """Connect the visits to the policy; raises ConfigError if one is there without the other."""
    visits = [one for one in parts if isinstance(one, SiteEvaluation)]
    policy, tuned = context.policy, context.policy.tuned
    if tuned is not None and not visits:
        raise ConfigError(
            f"sync = {policy!r} needs the losses of models at other sites: give the session a function that scores "
            "a model on samples of its site, Session(callbacks=[uneven.SiteEvaluation(score)]), or use the inner policy"
        )
    if tuned is not None and context.participants.changes:
        raise ConfigError(f"sync = {policy!r} in an elastic run: visits need fixed sites; leave out --elastic")
    for one in visits:
        if tuned is None:
            raise ConfigError(
                f"uneven.SiteEvaluation under sync = {policy!r}, which does not use visits: use sync='scout:geo'"
            )
        one.bind(tuned, context.sites, context.connection.traffic)
