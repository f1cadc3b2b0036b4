"""Exchanges that survive a member: tensors are added up among members that come and go, and no sum is lost.

What this worker brings is scaled into memory of the exchange's own and summed up there, so it is still there if the
exchange has to be made again. The memory of two exchanges takes turns: the sums of the last one are kept until this one
is over, for a member that had not completed the last one when somebody died. Those of gradients are not. After them
each member tells all others the few numbers that it has to say: who has heard all knows that everybody has the
gradients' sums, and may change them; who lacks a number has them, too. So only these numbers are kept.

One exchange is under way at a time, and all members make the same ones in the same order: gradients, parameters, and
the sums of parts on their lines. So members are at most one exchange apart. When one fails, the members agree on who
they are (:mod:`uneven.policy.core.membership`), and either add up anew or are given the sums by one that has them.

Where members meet in groups, each adds up on a process group of its own, and the sum of what they say is one of all.
So a loss is mended as where all meet, and all hear of it at one exchange. Pieces that members send one another
(:mod:`uneven.run.lines.all_to_all`) cannot be given by one that has them, so a last sum, of one number, confirms them,
too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from uneven.errors import TrainingError
from uneven.policy.core.membership import Generation, Meeting, Members, Statement
from uneven.policy.samples.requeued import RequeuedSamples
from uneven.run.gradients.step_check import out_of_step
from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted
from uneven.run.lines.all_to_all import Swap
from uneven.run.lines.contribution import Contribution, Weight
from uneven.run.lines.control_words import Slots
from uneven.run.membership.generations import Membership

_MOST_CIRCLES = 16
"""Process groups of some members that are kept, as the same ones meet again and again."""


@dataclass(frozen=True, slots=True)
class ExchangePlace:
    """Where this worker is in an exchange.

    Attributes:
        what: it is, for messages.
        epoch, place: the same on all members, a number of the place in the epoch; told where slots ride along.
        iteration: for messages.
        settles: the iteration up to which samples count as used once it is complete; −1 for none.
        groups: of the members, each of which exchanges among itself; None where all do.
        confirmed: whether the numbers that all say come after the sums, and say that everybody has them.
        passes: backward passes on this batch so far.
    """

    what: str
    epoch: int = 0
    place: int = 0
    iteration: int = 0
    settles: int = -1
    groups: Meeting | None = None
    confirmed: bool = False
    passes: int = 1

    @property
    def confirms(self) -> bool:
        """Whether something is begun when all sums have come, which says that they have."""
        return self.confirmed or self.groups is not None


class Recovery:
    """See the module.

    Args:
        membership: who takes part.
        returned: what each iteration's samples were split into.
        changed: told of each new generation of which this worker is a member, and whether it holds for the exchange
            under way (else from the next one on).
        flush: called before an exchange begins, as a generation may hold from this one on.
        announce: what this member has to announce with the next exchange; see :mod:`uneven.run.lines.control_words`.
        report_length: numbers in a row of a report.

    Attributes:
        circle: the process group of this generation.
        exchanges: completed over the whole run.
        by: number of the generation among whose members the newest of these was worked out.
        at: of the exchange under way; None between two.
        slots: what is said behind the sums.
        pieces: of the exchange under way.
    """

    def __init__(
        self, membership: Membership, returned: RequeuedSamples, *, changed: Callable[[Generation, bool, float], None],
        flush: Callable[[], None], announce: Callable[[], float], report_length: int,
    ) -> None:  # fmt: skip
        self.membership = membership
        self.circle: AbortableGroup | None = None
        self.exchanges = self.by = 0
        self.at: ExchangePlace | None = None
        self.slots = Slots(report_length)
        self.slots.renew(membership.place, len(membership.members))
        self.pieces: list[Contribution] = []
        self._swap: Swap | None = None
        self._circles: dict[Members, AbortableGroup] = {}  # of some members of this generation
        self._nothing = torch.empty(0, dtype=torch.float64)  # before the slots
        self._returned = returned
        self._changed = changed
        self._flush = flush
        self._announce = announce
        self._kept: list[Contribution] = []  # of the last one, with their sums
        self._spare: list[Contribution] = []  # of the one before, whose memory is used again

    # ---------------------------------------------------------------- an exchange
    def enter(self, at: ExchangePlace) -> None:
        """An exchange begins.

        Raises:
            TrainingError: another one is under way.
        """
        if self.at is not None:
            raise TrainingError(
                f"{at.what} inside of {self.at.what}: in an elastic run one exchange is made after the other, as all "
                f"members must have made the same ones when one of them is lost; wait for one before the next"
            )
        self._flush()
        self.at = at

    def begin(
        self, own: Tensor, weight: Weight, *, slots: bool = False, into: Tensor | None = None
    ) -> Contribution:  # fmt: skip
        """Begin to add up one tensor, flat and contiguous, which stays as it is until the exchange is complete.

        Args:
            own: it.
            weight: what it is scaled by, among those that take part when it is sent.
            slots: whether what all say rides behind it. In a confirmed exchange that comes by itself.
            into: memory for the sum, of an exchange that is confirmed; after a loss it is made elsewhere.
        """
        place = len(self.pieces)
        if into is None:
            piece = Contribution(own, weight, self._nothing)
            spare = self._spare[place] if place < len(self._spare) else None
            piece.room(spare, self.slots.count(own.dtype) if slots else 0)
        else:
            piece = Contribution(own, weight, into, kept=False)
        self.pieces.append(piece)
        self._send(piece)
        return piece

    def swap(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Begin to send pieces, and to receive others'; see :class:`Swap`. The exchange under way has nothing else."""
        self._swap = Swap(outgoing, incoming)
        self._swap.begin(self.circle, self.membership.members)

    def land(self) -> Members:
        """Wait until all sums of the exchange under way are there, whatever it takes.

        Returns:
            Whose tensors are in them.

        Raises:
            PeerError: too few are left; or one that is alive does not come within the time-out.
        """
        contributors = self.membership.members
        try:
            whole = self._wait()
        except TimeoutError:
            assert self.at is not None
            raise self.membership.missing(self.at.what, self.exchanges) from None
        if not whole:
            return self._recover()
        self.by = self.membership.generation.number
        return contributors

    def complete(self, contributors: Members) -> list[Contribution]:
        """The exchange under way is over.

        Returns:
            Its pieces; their sums are kept, so nobody may change them.

        Raises:
            TrainingError: members were at different places.
        """
        at, pieces, swap = self.at, self.pieces, self._swap
        assert at is not None
        if swap is not None:
            swap.take(contributors)
        for piece in pieces:
            piece.work = None
            if piece.slotted:
                self.slots.read(piece.sent[piece.own.numel() :])
        self._spare, self._kept, self.pieces, self.at, self._swap = self._kept, pieces, [], None, None
        if self.slots.apart:
            raise self._out_of_step(at)
        if at.settles >= 0:
            groups = () if at.groups is None else at.groups(self.by, self.membership.history[self.by])
            self._returned.exchanged(at.settles, contributors, groups)
        self.exchanges += 1
        return pieces

    def announced(self) -> tuple[float, ...]:
        """What the members have announced in the last exchange that had slots, by place; once."""
        said, self.slots.announced = self.slots.announced, ()
        return said

    # ---------------------------------------------------------------- between exchanges
    def all_through(self) -> bool:
        """Whether all members have completed the last exchange; all ask. Who leaves before that takes along what others
        lack, and they make the exchange again without it; so it stays for another step if this is False.

        Raises:
            PeerError: one that is alive does not come within the time-out.
        """
        try:
            if self.circle is None:
                return False
            self.circle.wait(self.circle.sum(torch.zeros(1)))
        except GroupAborted:
            return False
        except TimeoutError:
            raise self.membership.missing("a change of members", self.exchanges) from None
        return True

    def next_generation(self, *, between: bool = False, leaving: bool = False, new: bool = False) -> Generation:
        """Give the old one up, agree on the next one and make its group.

        Args:
            between: this worker is between two steps, where newcomers can come.
            leaving: it takes no part in the next one.
            new: it has joined, and was not given the state of the run yet.

        Raises:
            LeftOut, PeerError: see :meth:`Membership.agree`.
        """
        while True:
            if self.circle is not None:
                held = [] if self._swap is None else self._swap.drop()
                self.circle.drop(works := [*held, *(piece.work for piece in self.pieces)])
                del works, held
            for piece in self.pieces:
                piece.work = None
            self.circle = None
            for one in self._circles.values():
                one.drop()
            self._circles.clear()
            said = Statement(
                exchanges=self.exchanges, by=self.by, drawn=self._returned.newest, between=between, leaving=leaving,
                new=new,
            )  # fmt: skip
            made = self.membership.agree(said)
            if leaving:
                return made
            try:
                self.circle = self.membership.circle("exchanges")
            except GroupAborted:
                if not new:
                    self._changed(made, self.exchanges >= made.exchange, time.monotonic())
                continue
            return made

    def hand_over(self, new: Generation, lacking: bool) -> None:
        """Those that have the sums of the last exchange give them to those that lack them.

        Raises:
            Broken: one of them is gone, too.
        """
        if new.donor is None:
            return
        assert self.circle is not None
        pieces, source = self.pieces if lacking else self._kept, new.place(new.donor)
        for piece in (one for one in pieces if one.kept and one.inside is None):  # nobody lacks another one
            # What an exchange that has failed was given may still be written into.
            sent = piece.sent if new.donor == self.membership.worker else torch.empty_like(piece.sent)
            self.circle.wait(self.circle.broadcast(sent, source))
            if lacking:
                piece.sent = sent

    def serve(self) -> None:
        """Outside of all exchanges: others have given the generation up; give them what they lack."""
        while True:
            began_s, new = time.monotonic(), self.next_generation()
            try:
                self.hand_over(new, lacking=False)
            except GroupAborted:
                continue
            self._changed(new, True, began_s)
            return

    def mine(self, groups: Meeting) -> Members:
        """Those with whom this worker exchanges now."""
        generation, worker = self.membership.generation, self.membership.worker
        return next(one for one in groups(generation.number, generation.members) if worker in one)

    def spoken_for(self, iteration: int) -> float:
        """Samples that this worker speaks for among parties: those up to an iteration that its replica holds and not
        everybody's does, shared out among those that hold them."""
        return self._returned.spoken_for(self.membership.worker, iteration)

    def renew(self, generation: Generation) -> None:
        """From the next exchange on, or in the one that is begun anew, these are the members."""
        self.slots.renew(generation.place(self.membership.worker), len(generation.members))

    # ----------------------------------------------------------------
    def _send(self, piece: Contribution) -> None:
        assert self.at is not None
        piece.fill()
        if piece.slotted:
            slots = piece.sent[piece.own.numel() :]
            self.slots.fill(slots, self.at.epoch, self.at.place, self._announce())
        try:
            piece.inside = None if self.at.groups is None or piece.slotted else self.mine(self.at.groups)
            circle = self.circle if piece.inside is None else self._circle_of(piece.inside)
            if circle is None:
                piece.work = None
            elif piece.slotted and not piece.own.numel():
                piece.work = self.slots.tell(piece.sent, circle)
            else:
                piece.work = circle.sum(piece.sent)
        except GroupAborted:
            piece.work = None

    def _circle_of(self, group: Members) -> AbortableGroup | None:
        """The process group of some members; all of them ask for it at the same exchange."""
        if self.circle is None or group == self.membership.members:
            return self.circle
        if group not in self._circles:
            if len(self._circles) >= _MOST_CIRCLES:  # its exchanges are long complete, on all
                self._circles.pop(next(iter(self._circles))).drop()
            self._circles[group] = self.membership.circle(f"exchange {self.exchanges} of {group[0]}", group)
        return self._circles[group]

    def _wait(self) -> bool:
        circle = self.circle
        try:
            if circle is None or not self._received(circle) or any(piece.work is None for piece in self.pieces):
                return False
            for piece in (one for one in self.pieces if one.inside is None):
                circle.wait(piece.work)
        except GroupAborted:
            return False
        return True

    def _received(self, circle: AbortableGroup) -> bool:
        """Whether all has come that is to be confirmed; then that begins."""
        assert self.at is not None
        if self._swap is not None and not self.pieces:
            if not self._swap.wait(circle):
                return False
            self.begin(torch.zeros(1), _one)
        elif self.at.confirms and not any(piece.slotted for piece in self.pieces):
            for piece in self.pieces:
                within = circle if piece.inside is None else self._circle_of(piece.inside)
                if piece.work is None or within is None:
                    return False
                within.wait(piece.work)
            self.begin(self._nothing, _one, slots=True)
        return True

    def _recover(self) -> Members:
        """Complete the exchange under way among those that are left; whose tensors are in it."""
        while True:
            began_s, new = time.monotonic(), self.next_generation()
            try:
                lacking = self.exchanges < new.exchange
                self.hand_over(new, lacking)
                self._changed(new, not lacking, began_s)
                if lacking:
                    self.by = new.by
                    return self.membership.history[new.by]
                self._begin_anew(needed=new.donor is not None)
                if self._wait():
                    self.by = new.number
                    return new.members
            except GroupAborted:
                continue
            except TimeoutError:
                assert self.at is not None
                raise self.membership.missing(self.at.what, self.exchanges) from None

    def _begin_anew(self, needed: bool) -> None:
        """What this worker brings once more, weighted by who is left, in memory that nobody else writes into.

        Args:
            needed: whether a member may still need the last sums; else their memory is taken, as it is there already.
        """
        if self._swap is not None:
            self.pieces.clear()
            self._swap.begin(self.circle, self.membership.members)
        assert self.at is not None
        if self.at.confirms:
            self.pieces[:] = [piece for piece in self.pieces if not piece.slotted]
        spare, self._spare = [] if needed else self._kept, []
        if not needed:
            self._kept = []
        for place, piece in enumerate(self.pieces):
            slots = self.slots.count(piece.own.dtype) if piece.slotted else 0
            piece.room(spare[place] if place < len(spare) else None, slots)
            self._send(piece)

    def _out_of_step(self, at: ExchangePlace) -> TrainingError:
        circle = self.circle
        assert circle is not None
        where = at.epoch, at.iteration, circle.place, self.membership.members
        return out_of_step(lambda table: circle.wait(circle.sum(table)), *where, at.passes)


def _one() -> float:
    return 1.0
