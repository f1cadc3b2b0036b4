"""Exchanges that survive the loss of a member: no sum is lost when members leave or join.

A tensor is scaled into memory of the exchange and summed there, so the original remains if the exchange must be
repeated. The sums of the last exchange are kept until the current one is complete, for a member that had not completed
the last one at a loss. Two exchanges take turns in this memory.

The sums of gradients are not kept. After them each member sends all others a few numbers. A member with the numbers of
all knows that all have the sums, and may change them. A member that lacks a number still has its own sums. So only
these numbers are kept.

One exchange is under way at a time, and all members make the same ones in the same order: gradients, parameters, and
sums of callbacks on their lines. So members are at most one exchange apart. When one fails, the members agree on the
next generation (:mod:`uneven.policy.core.membership`). Then they sum again, or a member that has the sums sends them.

If members exchange in groups, each sums on its own process group, and one sum over all members confirms. So a loss is
repaired the same way, and all learn of it at one exchange. A member does not keep the pieces of others
(:mod:`uneven.run.lines.group_lines`), so a last sum, of one number, confirms these too.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from uneven.errors import PeerError, TrainingError
from uneven.policy.core.membership import Generation, Meeting, Members, Statement
from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted
from uneven.run.lines.communicator import Contribution, RoundPlace, Weight, unscaled
from uneven.run.lines.control_words import ControlWords, WordsMessage
from uneven.run.lines.group_lines import Pieces, Swap
from uneven.run.lines.in_step import out_of_step
from uneven.run.lines.traffic import bytes_of_sum

if TYPE_CHECKING:
    from uneven.run.membership.elastic_run import ElasticRun
    from uneven.run.membership.generations import Membership

_MOST_CIRCLES = 16  # process groups of some members that are kept, because the same ones meet again and again

_MOST_FAILED = 20  # attempts to form a group of the same members


class ElasticCommunicator:
    """The rounds of one worker among members that come and go, with the methods of
    :class:`.bucket_communicator.BucketCommunicator`.

    Args:
        listener: called in the thread of the round.
        report_length: numbers in a row of a report.

    Attributes:
        exchanges: completed over the whole run.
        by: number of the generation that made the newest sums.
    """

    lonely = whole = True
    in_place = False

    def __init__(self, membership: "Membership", listener: "ElasticRun", *, report_length: int) -> None:
        self.membership = membership
        self.circle: AbortableGroup | None = None  # the process group of this generation
        self.exchanges = self.by = 0
        self.at: RoundPlace | None = None  # place of the exchange under way; None between two
        who = membership.place, len(membership.members)
        self.words = ControlWords(*who, report_length, torch.float64, announces=True)
        self.pieces: list[Contribution] = []  # of the exchange under way
        self._swap: Swap | None = None
        self._circles: dict[Members, AbortableGroup] = {}  # groups of some members of this generation
        self._listener = listener
        self._kept: list[Contribution] = []  # of the last exchange, with their sums
        self._spare: list[Contribution] = []  # of the exchange before; their memory is used again

    def begin(self, at: RoundPlace) -> None:
        if self.at is not None:
            raise TrainingError(
                f"{at.what} inside of {self.at.what}: elastic runs exchange one after the other, so that members "
                "can repeat an exchange after a loss; wait for one before the next"
            )
        self._listener.flush()
        self.at = at

    def add(self, own: Tensor, weight: Weight = unscaled, *, into: Tensor | None = None) -> Contribution:
        """Start the sum of one tensor; see :class:`.bucket_communicator.BucketCommunicator`.
        The sum has the memory ``into`` only if the exchange is confirmed, and other memory after a loss."""
        piece = Contribution(own, weight, own if into is None else into, kept=into is None)
        if into is None:
            place = len(self.pieces)
            piece.room(self._spare[place] if place < len(self._spare) else None)
        self.pieces.append(piece)
        self._send(piece)
        return piece

    def _say(self) -> None:
        """Start the exchange of all members' words."""
        nothing = torch.empty(0, dtype=torch.float64)
        self.pieces.append(piece := Contribution(nothing, unscaled, nothing, worded=True))
        self._send(piece)

    def swap(self, pieces: Pieces) -> None:
        """Start an all-to-all of these pieces, the only tensors of the exchange under way."""
        self._swap = Swap(pieces)
        self._swap.begin(self.circle, self.membership.members)

    def land(self, *, words: bool = False) -> Members:
        """Wait for all sums, repair the round after a loss, finish it, and return the workers whose tensors are in the
        sums. The sums are kept for others, so they must not be changed.

        Raises PeerError if too few members are left, or if one that is alive does not take part within the time-out,
        and TrainingError if members were at different places.
        """
        assert self.at is not None
        if words and not self.at.confirms:  # otherwise `_received` starts it after the sums
            self._say()
        contributors = self._made()
        self.complete(contributors)
        return contributors

    def _made(self) -> Members:
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
        """Finish the round under way, and return its pieces."""
        at, pieces, swap = self.at, self.pieces, self._swap
        assert at is not None
        if swap is not None:
            swap.take(contributors)
        for piece in pieces:
            piece.work = None
            piece.sent_bytes = bytes_of_sum(piece.sent.nbytes, len(piece.inside or self.membership.members))
            if piece.worded:
                self.words.read(piece.sent)
        self._spare, self._kept, self.pieces, self.at, self._swap = self._kept, pieces, [], None, None
        if self.words.apart:
            raise self._out_of_step(at)
        if at.settles >= 0:
            groups = () if at.groups is None else at.groups(self.by, self.membership.history[self.by])
            self._listener.landed(at.settles, contributors, groups)
        self.exchanges += 1
        return pieces

    def announced(self) -> tuple[float, ...]:
        """Return the members' announcements in the last exchange with words, by place, and clear them."""
        said, self.words.announced = self.words.announced, ()
        return said

    def all_through(self) -> bool:  # if not, a worker must not leave yet: the others may need its tensors
        """Return whether all members have completed the last exchange; a collective call."""
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
        """Give up this generation, agree on the next one and form its group. Raises as :meth:`Membership.agree`.

        Args:
            between: whether this worker is between two steps, so that newcomers can join.
            leaving: whether it leaves with this change, unless a newcomer needs its state.
            new: whether it has joined and not received the state of the run yet.
        """
        failed: list[Members] = []
        while True:
            if self.circle is not None:
                # gloo's threads may still write into the tensors of a failed exchange. The dropped group keeps them
                # alive until it ends.
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
                exchanges=self.exchanges,
                by=self.by,
                drawn=self._listener.drawn(),
                between=between,
                leaving=leaving,
                new=new,
            )
            made = self.membership.agree(said)
            if self.membership.worker not in made.members:
                return made
            try:
                self.circle = self.membership.circle("exchanges")
            except GroupAborted as error:
                failed += [made.members] if error.__cause__ else []  # not after another member's failure
                if failed[-_MOST_FAILED:] == [made.members] * _MOST_FAILED:
                    raise PeerError(
                        f"worker {self.membership.worker} cannot form a group with the members {made.members}: "
                        f"{_MOST_FAILED} attempts failed; check its address and the network between them (the last "
                        f"one: {error})"
                    ) from None
                if failed[-1:] == [made.members]:  # without a network, an attempt fails immediately
                    time.sleep(min(1.0, 0.01 * 2 ** len(failed)))
                if not new:
                    self._listener.changed(made, self.exchanges >= made.exchange, time.monotonic())
                continue
            return made

    def _take_up(self, new: Generation, began_s: float, *, lacking: bool) -> None:
        """Report a new generation; before that, send it the sums of the last exchange if members lack them."""
        try:
            self._hand_over(new, lacking)
        finally:  # if the donor is lost now, the next generation does not name the members that were lost before
            self._listener.changed(new, not lacking, began_s)

    def _hand_over(self, new: Generation, lacking: bool) -> None:
        if new.donor is None:
            return
        assert self.circle is not None
        pieces, source = self.pieces if lacking else self._kept, new.place(new.donor)
        for piece in (one for one in pieces if one.kept and one.inside is None):  # no member lacks another one
            # The failed exchange may still write into its own memory.
            sent = piece.sent if new.donor == self.membership.worker else torch.empty_like(piece.sent)
            self.circle.wait(self.circle.broadcast(sent, source))
            if lacking:
                piece.sent = sent

    def serve(self, *, between: bool = False, leaving: bool = False) -> Generation:
        """Form the next generation with the others outside of any exchange, and send them the sums that they lack.
        See :meth:`next_generation` for ``between`` and ``leaving``."""
        while True:
            began_s, new = time.monotonic(), self.next_generation(between=between, leaving=leaving)
            try:
                if self.membership.worker in new.members:
                    self._take_up(new, began_s, lacking=False)
            except GroupAborted:
                continue
            return new

    def mine(self, groups: Meeting) -> Members:
        generation, worker = self.membership.generation, self.membership.worker
        return next(one for one in groups(generation.number, generation.members) if worker in one)

    def renew(self, generation: Generation) -> None:
        self.words.renew(generation.place(self.membership.worker), len(generation.members))

    def meet(self, device: torch.device, ends: Callable[[], None]) -> ControlWords:
        return self.words

    def nonfinite(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: the group belongs to the generation."""

    def _send(self, piece: Contribution) -> None:
        assert self.at is not None
        if not piece.worded:
            try:
                piece.fill()
            except PeerError:  # the same on all members: each may start another exchange instead
                self.pieces, self.at = [], None
                raise
        else:
            piece.sent = torch.empty(self.words.count(piece.own.dtype), dtype=piece.own.dtype)
            self.words.write(piece.sent, self.at, self._listener.announce())
        try:
            piece.inside = None if self.at.groups is None or piece.worded else self.mine(self.at.groups)
            circle = self.circle if piece.inside is None else self._circle_of(piece.inside)
            if circle is None:
                piece.work = None
            elif piece.worded:
                piece.work = WordsMessage(piece.sent, circle.place, circle)
            else:
                piece.work = circle.sum(piece.sent)
        except GroupAborted:
            piece.work = None

    def _circle_of(self, group: Members) -> AbortableGroup | None:
        if self.circle is None or group == self.membership.members:
            return self.circle
        if group not in self._circles:
            if len(self._circles) >= _MOST_CIRCLES:  # its exchanges are long complete, on all
                self._circles.pop(next(iter(self._circles))).drop()
            self._circles[group] = self.membership.circle(f"exchange {self.exchanges} of {group[0]}", group)
            self._circles[group].waits = self._waits
        return self._circles[group]

    def _waits(self) -> None:
        self.membership.waits(self.exchanges)

    def _wait(self) -> bool:
        if (circle := self.circle) is None:
            return False
        circle.waits = self._waits
        try:
            if not self._received(circle) or any(piece.work is None for piece in self.pieces):
                return False
            for piece in (one for one in self.pieces if one.inside is None):
                circle.wait(piece.work)
        except GroupAborted:
            return False
        return True

    def _received(self, circle: AbortableGroup) -> bool:
        """Wait for all sums that need a confirmation, and start it. Return False after a failure."""
        assert self.at is not None
        if self._swap is not None and not self.pieces:
            if not self._swap.wait(circle):
                return False
            if self.at.confirms:
                self._say()
            else:
                self.add(torch.zeros(1))
        elif self.at.confirms and not any(piece.worded for piece in self.pieces):
            for piece in self.pieces:
                within = circle if piece.inside is None else self._circle_of(piece.inside)
                if piece.work is None or within is None:
                    return False
                within.wait(piece.work)
            self._say()
        return True

    def _recover(self) -> Members:
        """Complete the exchange under way among the remaining members; return whose tensors are in it."""
        while True:
            began_s, new = time.monotonic(), self.next_generation()
            try:
                lacking = self.exchanges < new.exchange
                self._take_up(new, began_s, lacking=lacking)
                if lacking:
                    # The sums were made before this generation, so the members of that generation are in them.
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
        """Send this worker's tensors again; unless a member still ``needed`` the last sums, reuse their memory."""
        if self._swap is not None:
            self.pieces.clear()
            self._swap.begin(self.circle, self.membership.members)
        assert self.at is not None
        if self.at.confirms:
            # `_received` starts the confirmation again after the repeated sums.
            self.pieces[:] = [piece for piece in self.pieces if not piece.worded]
        spare, self._spare = [] if needed else self._kept, []
        if not needed:
            self._kept = []
        for place, piece in enumerate(self.pieces):
            if not piece.worded:
                piece.room(spare[place] if place < len(spare) else None)
            self._send(piece)

    def _out_of_step(self, at: RoundPlace) -> TrainingError:
        circle = self.circle
        assert circle is not None
        where = at.epoch, at.iteration, circle.place, self.membership.members
        return out_of_step(lambda table: circle.wait(circle.sum(table)), *where, at.passes)
