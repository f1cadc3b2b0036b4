"""A worker's replica and the server's parameters: what goes there and what comes back, as one vector."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.core.actions import Exchange, Merge, Payload
from uneven.errors import ConfigError, NonFiniteError
from uneven.run.lines.traffic import Traffic
from uneven.run.parameter_server.home import Home
from uneven.run.parameters.replica import Replica
from uneven.server import Client, Reply, table_of

Values = npt.NDArray[Any]

_NOTHING = 2.0**-40
"""A weight beside which every number of samples is everything; alone it is exact, being a power of two."""


class OuterStep(TypedDict):
    """How a movement is merged; see :meth:`uneven.server.Client.movement`."""

    weight: float
    quorum: int
    momentum: float
    grace: float


class SharedCopy:
    """One worker's end; nothing is sent before :meth:`begin`.

    Attributes:
        client: to the shards, once it has begun.
        base: the copy that the replica has moved away from since; None before the first pull.
        velocity: what outer steps go on from, shape (size,); None where they begin.
        least: steps that everybody who is counted had finished in the copy that came last.
    """

    def __init__(self, replica: Replica, rank: int, home: Home, timeout_s: float, traffic: Traffic) -> None:
        self._replica = replica
        self._rank = rank
        self._home = home
        self._timeout_s = timeout_s
        self._traffic = traffic
        self._client: Client | None = None
        self._version = 0  # of the copy that came last
        self._checked: Merge | None = None  # the merge that came last
        self.base: Values | None = None
        self.velocity: Values | None = None
        self.least = 0

    @property
    def begun(self) -> bool:
        """Whether the shards know of this worker."""
        return self._client is not None

    @property
    def client(self) -> Client:
        """To the shards, once it has begun."""
        assert self._client is not None, "begin() comes first"
        return self._client

    def begin(self, start: Values | None, clock: int) -> None:
        """Meet the shards.

        Args:
            start: what the copy begins with, shape (size,), alike on every worker; None for the replica.
            clock: steps that this worker has finished.
        """
        if self._client is None:
            values = self.read() if start is None else start
            table = table_of([values.shape], values.dtype.name, self._home.shards)
            line = self._home.line()
            client = Client(self._rank, table, [values], line, clock=clock, timeout_s=self._timeout_s)
            self._client = client
            if self._home.between is not None:
                self._home.between.begin(table, values, self._home.line(), clock, told=client.broken)
            if self.velocity is not None:
                self._client.kept([self.velocity]).result()
            self._home.begun()

    @property
    def step(self) -> int:
        """That this worker's next contribution to a mean is to."""
        return self._version

    def read(self) -> Values:
        """The replica; shape (size,)."""
        values: Values = self._replica.flat.read().cpu().numpy()
        return values

    def write(self, values: Values) -> None:
        """Make the replica these values; shape (size,)."""
        self._replica.flat.write(self.tensor(values))

    def tensor(self, values: Values) -> Tensor:
        """The same values where the model is; shape (size,)."""
        return torch.from_numpy(values).to(self._replica.flat.device)

    def pulled(self, due: int = 0) -> Values:
        """The copy, shape (size,), once all workers have finished so many steps.

        Raises:
            PeerError: as of the client.
        """
        values = self.read()
        with self._traffic.waiting():
            self._note(self.client.pull(due).into([values]))
        return values

    def follow(self, due: int) -> None:
        """Let the replica be the copy.

        Raises:
            PeerError: as of the client.
        """
        self.base = self.pulled(due)
        self.write(self.base)

    def swap(self, exchange: Exchange, step: int, own: Values, due: int) -> tuple[Values, int]:
        """Exchange with the shards what ``exchange`` asks for; ``own`` has shape (size,).

        Returns:
            What a replica that was ``own`` becomes, shape (size,), and how many updates of others came in between.

        Raises:
            ConfigError: the shards would do something else than the merge.
            NonFiniteError: the copy refuses what was given.
            PeerError: as of the client.
        """
        before, outcome, merge = self._version, own.copy(), exchange.merge
        factor = merge.served(exchange.payload)
        assert factor is not None, "refused before it came here"
        if merge is not self._checked:
            check_served(merge, exchange.payload, factor, torch.from_numpy(own))
            self._checked = merge
        if exchange.payload is Payload.PARAMETERS:
            given = own
            with self._traffic.waiting():
                self._note(self.client.exchange(step, [given], alpha=factor).into([outcome]))
        else:
            assert self.base is not None, "pulled before the first step"
            given = self._given(merge, own - self.base)
            with self._traffic.waiting():
                self._note(self.client.push_pull(step, [given], scale=factor, clock=due).into([outcome]))
            self.base = outcome
        self._traffic.sent_bytes += given.nbytes
        return outcome, max(0, self._version - before - 1)

    def contribute(self, quorum: int, own: Values, samples: int) -> tuple[Values, int]:
        """Give what the replica has become of the copy, for the mean of the step, which is the copy from then on.

        All begin a step with the same copy, so the mean of what became of it is the copy, moved by the mean movement.

        Returns:
            What the replica becomes, shape (size,), and how many steps are complete without this worker: 0 if it has
            come in time.

        Raises:
            NonFiniteError: it holds a NaN or an infinity; the others go on without it.
            PeerError: as of the client.
        """
        assert self.base is not None, "pulled before the first step"
        step, outcome = self._version, own.copy()
        reply = self.client.gradient(step, [own], weight=samples, quorum=quorum)
        self._traffic.sent_bytes += own.nbytes
        try:
            with self._traffic.waiting():
                late = reply.left_out()
        except NonFiniteError:
            # It counts as one of the first so many, and for nothing else.
            self.client.gradient(step, [self.base], weight=_NOTHING, quorum=quorum).left_out()
            raise
        with self._traffic.waiting():
            self._note((self.client.pull() if late else reply).into([outcome]))
        self.base = outcome
        return outcome, self._version - step if late else 0

    def kept(self) -> Values:
        """The velocity of outer steps, shape (size,).

        Raises:
            PeerError: as of the client.
        """
        values = np.zeros_like(self.read()) if self.velocity is None else self.velocity
        if self._client is not None:
            self._client.kept().into([values := values.copy()])
        return values

    def moved(self, own: Values) -> Values:
        """What the replica has moved since the copy that came last; shape (size,)."""
        assert self.base is not None, "pulled before the first step"
        return own - self.base

    def merge(self, step: int, given: Values, how: OuterStep) -> Values:
        """Give a movement for the outer step that the copy takes next, with a quorum of workers.

        Args:
            step: of this worker, the last one in the movement.
            given: shape (size,).

        Returns:
            The copy after it, shape (size,).

        Raises:
            NonFiniteError: the copy refuses what was given.
            PeerError: a shard gives no sign of life.
        """
        outcome = np.empty_like(given)
        with self._traffic.waiting():
            self._note(self.client.movement(step, [given], **how).into([outcome]))
        self._traffic.sent_bytes += given.nbytes
        self.base = outcome
        return outcome

    def _given(self, merge: Merge, movement: Values) -> Values:
        """What goes to the copy of a movement; that of running statistics goes as it is, unless the merge wants it."""
        length = len(movement) if merge.whole else self._replica.flat.trained
        part = torch.from_numpy(movement[:length])
        given = merge.contribute(part, {})
        if given is not part:
            movement[:length] = given.numpy()
        return movement

    def _note(self, reply: Reply) -> None:
        self._version, self.least = reply.version, reply.least


def check_served(merge: Merge, payload: Payload, factor: float, own: Tensor) -> None:
    """Refuse a merge that comes to something else than the shards, which know two operations and no merges.

    Args:
        own: numbers to try it on, shape (n,).

    Raises:
        ConfigError: naming the merge.
    """
    centre = torch.linspace(-1.0, 1.0, len(own), dtype=own.dtype)
    kept = merge.begin(centre.clone())
    given, theirs = own, factor * own
    if payload is Payload.PARAMETERS:
        given, theirs = merge.contribute(own.clone(), kept), factor * (own - centre)
    _, outcome = merge.combine(kept, given, 1.0)
    if not torch.allclose(outcome, centre + theirs, equal_nan=True):
        what = "times the movement" if payload is Payload.DELTA else "times the distance of replica and copy"
        raise ConfigError(
            f"{merge!r} says that a parameter server adds {factor:g} {what} to its copy, but its own combine comes to "
            f"something else: let served() answer None, and simulate it instead"
        )
