"""The conversion of a worker's replica to and from the server's parameters, as one vector."""

from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.errors import ConfigError, NonFiniteError
from uneven.policy.core.actions import Exchange, Merge, Payload
from uneven.run.lines.traffic import Traffic
from uneven.run.replicas.replica import Replica
from uneven.run.replicas.server.locate import ServerLocation
from uneven.runtime.parameter_server import Client, Reply, table_of

Values = npt.NDArray[Any]

# A weight that vanishes next to any number of samples; on its own it is exact, being a power of two.
_NOTHING = 2.0**-40


class OuterStep(TypedDict):
    """The merge of a movement; see :meth:`uneven.runtime.parameter_server.Client.movement`."""

    weight: float
    quorum: int
    momentum: float
    grace: float


class ServerParameters:
    """One worker's access to the server's copy; nothing is sent before :meth:`begin`. The replica's vectors must be
    on the host.

    Attributes:
        base: the copy that the replica started from; None before the first pull. Shape (size,).
        velocity: the momentum buffer of outer steps from a checkpoint, shape (size,).
        least: steps that every counted worker had finished in the newest copy.
    """

    def __init__(self, replica: Replica, rank: int, home: ServerLocation, timeout_s: float, traffic: Traffic) -> None:
        self._replica = replica
        self._rank = rank
        self._home = home
        self._timeout_s = timeout_s
        self._traffic = traffic
        self._client: Client | None = None
        self._version = 0  # of the newest copy
        self._checked: Merge | None = None  # the last merge that passed check_served
        self.base: Values | None = None
        self.velocity: Values | None = None
        self.least = 0

    @property
    def begun(self) -> bool:
        return self._client is not None

    @property
    def client(self) -> Client:
        assert self._client is not None, "begin() comes first"
        return self._client

    def begin(self, start: Values | None, clock: int) -> None:
        """Connect to the shards; ``start`` is the initial copy, shape (size,), equal on every worker, or None for the
        replica.
        ``clock`` are the steps that this worker has finished."""
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
        """The step to which this worker's next contribution belongs."""
        return self._version

    def read(self) -> Values:
        """Return the replica, shape (size,)."""
        values: Values = self._replica.flat.read().numpy()
        return values

    def write(self, values: Values) -> None:
        """Write the values, shape (size,), into the replica."""
        self._replica.flat.write(torch.from_numpy(values))

    def pulled(self, due: int = 0) -> Values:
        """Return the copy, shape (size,), once all workers have finished ``due`` steps."""
        values = self.read()
        with self._traffic.waiting():
            self._note(self.client.pull(due).into([values]))
        return values

    def follow(self, due: int) -> None:
        """Pull the copy into the replica."""
        self.base = self.pulled(due)
        self.write(self.base)

    def swap(self, exchange: Exchange, step: int, own: Values, due: int) -> tuple[Values, int]:
        """Exchange ``own`` (size,) with the shards; return its new values (size,), and the other workers' updates in
        between.

        Raises:
            ConfigError: the shards and the merge would have different results.
            NonFiniteError: the copy rejects the values.
            PeerError: a shard does not answer.
        """
        before, outcome, merge = self._version, own.copy(), exchange.merge
        factor = merge.served(exchange.payload)
        assert factor is not None, "the caller has checked the merge"
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
        """Contribute the replica ``own`` (size,) to the mean of the step, which becomes the copy.

        Returns the new replica (size,), and the number of steps completed without this worker: 0 if it was in time.
        Raises :class:`NonFiniteError` if it holds a NaN or an infinity; the others continue without it.
        """
        assert self.base is not None, "pulled before the first step"
        # All workers start a step with the same copy, so the mean of replicas is the copy plus the mean movement.
        step, outcome = self._version, own.copy()
        reply = self.client.gradient(step, [own], weight=samples, quorum=quorum)
        self._traffic.sent_bytes += own.nbytes
        try:
            with self._traffic.waiting():
                late = reply.left_out()
        except NonFiniteError:
            # It fills a place in the quorum, so that the others do not wait, but has no weight.
            self.client.gradient(step, [self.base], weight=_NOTHING, quorum=quorum).left_out()
            raise
        with self._traffic.waiting():
            self._note((self.client.pull() if late else reply).into([outcome]))
        self.base = outcome
        return outcome, self._version - step if late else 0

    def kept(self) -> Values:
        """Return the momentum buffer of outer steps, shape (size,)."""
        values = np.zeros_like(self.read()) if self.velocity is None else self.velocity
        if self._client is not None:
            self._client.kept().into([values := values.copy()])
        return values

    def moved(self, own: Values) -> Values:
        """Return the movement of the replica ``own`` since the newest copy, shape (size,)."""
        assert self.base is not None, "pulled before the first step"
        return own - self.base

    def merge(self, step: int, given: Values, how: OuterStep) -> Values:
        """Contribute a movement ``given`` (size,) up to ``step`` to the copy's next outer step; return the new copy
        (size,).
        Raises :class:`NonFiniteError` if the copy rejects it, :class:`PeerError` if a shard sends no heartbeat."""
        outcome = np.empty_like(given)
        with self._traffic.waiting():
            self._note(self.client.movement(step, [given], **how).into([outcome]))
        self._traffic.sent_bytes += given.nbytes
        self.base = outcome
        return outcome

    def _given(self, merge: Merge, movement: Values) -> Values:
        """Return the values to send for a movement."""
        # Movements of running statistics are sent as they are, unless the merge takes the whole vector.
        length = len(movement) if merge.whole else self._replica.flat.trained
        part = torch.from_numpy(movement[:length])
        given = merge.contribute(part, {})
        if given is not part:
            movement[:length] = given.numpy()
        return movement

    def _note(self, reply: Reply) -> None:
        self._version, self.least = reply.version, reply.least


def check_served(merge: Merge, payload: Payload, factor: float, own: Tensor) -> None:
    """Raise :class:`ConfigError` if a merge and the shards, which know two operations and no merges, have different
    results.

    ``own`` are numbers to try it on, shape (n,).
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
            f"{merge!r} declares that a parameter server adds {factor:g} {what} to its copy, but its combine() "
            "gives another result: return None from served(), and simulate it instead"
        )
