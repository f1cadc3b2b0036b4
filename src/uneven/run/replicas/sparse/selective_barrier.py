"""The messages of the selective barrier: announced places of entries, and receipts."""

import struct
from collections.abc import Mapping, Sequence

from uneven.errors import PeerError
from uneven.policy.select import Backlog, Barrier, Picked, pack_places, unpack_places
from uneven.run.lines.traffic import Traffic
from uneven.runtime.messages.peer_messages import PeerMessages

_WORD = struct.Struct("<cQ")
_TAKEN, _COMES = b"t", b"c"


class Announcements:
    """One speaker's part; ``post`` has two ways, and each message to a party is announced above ``most_bytes`` under
    way."""

    def __init__(
        self, post: PeerMessages, speakers: Mapping[int, int], traffic: Sequence[Traffic], size: int, most_bytes: float
    ) -> None:
        self._post = post
        self._speakers = dict(speakers)
        self._traffic = traffic
        self._size = size
        self._backlogs = {place: Backlog(most_bytes) for place in self._speakers}
        self._barrier = Barrier()
        self._told = dict.fromkeys(self._speakers, 0)

    def leaves(self, picked: Picked, length: int) -> None:
        """Announce a message that is about to leave for all others to those with too much under way."""
        self._look()  # receipts first, because they shorten the backlogs
        word: bytes | None = None
        for place, backlog in self._backlogs.items():
            number, late = backlog.leaves(length)
            if late and len(picked.values):
                word = pack_places(picked) if word is None else word
                self._say(place, _WORD.pack(_COMES, number) + word)

    def due(self) -> dict[int, int]:
        """Return, by place, how many of its messages must be in the replica before the next step, which reads all of
        it."""
        self._look()
        return self._barrier.due()

    def taken(self, numbers: Mapping[int, int]) -> None:
        """Send receipts; ``numbers`` are, by place, its messages in the replica."""
        for place, number in numbers.items():
            self._barrier.taken(place, number)
            if number > self._told[place]:
                self._told[place] = number
                self._say(place, _WORD.pack(_TAKEN, number))

    def _say(self, place: int, message: bytes) -> None:
        self._post.send_early(self._speakers[place], message)
        self._traffic[place].sent_bytes += len(message)

    def _look(self) -> None:
        for place, rank in self._speakers.items():
            for message in self._post.early(rank):
                kind, number = _WORD.unpack(message[: _WORD.size]) if len(message) >= _WORD.size else (b"", 0)
                if kind == _TAKEN:
                    self._backlogs[place].taken(number)
                elif kind == _COMES:
                    self._barrier.announced(place, number, unpack_places(message[_WORD.size :], self._size))
                else:
                    raise PeerError(
                        f"{len(message)} bytes from rank {rank} are not a message: run one version of uneven on all"
                    )
