"""Where the parameter server of a session is: in shards that ``uneven run --servers`` has started, or in rank 0.

Without servers one shard is a thread of rank 0, so the run needs rank 0 alone. Where each site has a server, that is a
thread of its first worker. The shard ends when no other worker needs it any more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from uneven.errors import ConfigError
from uneven.folder import SHARD_FOLDER, TemporaryFolder
from uneven.run.entries.post import own_address
from uneven.run.lines.transport import Transport
from uneven.run.own_pace.shutdown import ShutdownHandshake
from uneven.run.parameter_server.between import BetweenSites
from uneven.run.start.connect import compare
from uneven.rundir import GIVES_UP_WITHIN_S, Expendable, mark_expendable
from uneven.server import ShardHost, ZmqLine, make_keys
from uneven.server.host import LOOPBACK
from uneven.server.keys import SERVER, client_keys, shards_in
from uneven.server.known import FOLLOWER
from uneven.world import World

Members = tuple[int, ...]

_LOOK_S = 0.05
_APART = "other sites wait for what its site has to send"
_HELD = "it was the parameter server, which `uneven run --servers 1` keeps in a process of its own"


@dataclass(slots=True)
class Home:
    """The way of one worker to the shards.

    Attributes:
        local: whether shards on this machine may be talked to without encryption, through a socket that only its
            owner can open; not where machines are only played by namespaces.
        world: this worker.
        timeout_s: for how long an exchange may wait.
        party: those that share it, where each site has one; empty where all do.
        host: the shard in this process, if it is the one.
        own: the directory, if it was made for that shard.
        between: what that shard tells those of other sites, if there are any.
    """

    directory: Path
    shards: int
    local: bool
    world: World
    timeout_s: float
    party: Members = ()
    host: ShardHost | None = None
    own: TemporaryFolder | None = None
    between: BetweenSites | None = None

    def begun(self, *, training: bool = True) -> None:
        """Training through the shards begins: tell the launcher that the others go on if this worker dies, or why not.

        Args:
            training: False before that: others may train already, and come to their end without this worker.
        """
        if self.world.run_directory is not None:
            stops = _APART if self.party else "" if self.host is None else _HELD
            mark = Expendable(stops, self.timeout_s + GIVES_UP_WITHIN_S, training)
            mark_expendable(self.world.run_directory, self.world.rank, mark)

    def line(self) -> ZmqLine:
        """A new line to the shards."""
        return ZmqLine(self.directory, self.shards, local=self.local)

    def close(self, shutdown: ShutdownHandshake, timeout_s: float, *, failed: bool) -> None:
        """Need the shards no more; where one is here and nothing has failed, wait for who still needs it.

        After a failure what :meth:`begun` has reported stands: the death that follows is one in training.

        Raises:
            PeerError: the store that the workers met at does not answer.
        """
        try:
            if not failed:
                shutdown.done()
            if self.host is not None and not failed:
                _wait(self.host, shutdown, timeout_s, self.party)
        finally:
            try:
                if self.between is not None:
                    self.between.close(failed)
            finally:
                self.leave()

    def leave(self) -> None:
        """End the shard that is here, if one is. Calling it twice is fine.

        Raises:
            PeerError: it had ended by itself before, with an error.
        """
        host, self.host = self.host, None
        own, self.own = self.own, None
        try:
            if host is not None:
                host.close()
        finally:
            if own is not None:
                own.remove()


def _wait(host: ShardHost, shutdown: ShutdownHandshake, timeout_s: float, party: Members) -> None:
    """Until every other worker has closed its session or fallen silent; who has not come at all is given up in time.

    Args:
        party: those that count; empty for all.
    """
    limit_s = time.monotonic() + timeout_s
    others = [rank for rank in shutdown.others if rank in party or not party]
    while others:
        others = [rank for rank in others if not shutdown.is_done(rank) and host.here(rank) is not False]
        if not any(host.here(rank) for rank in others) and time.monotonic() > limit_s:
            return
        time.sleep(_LOOK_S if others else 0.0)


def find_home(transport: Transport, world: World, timeout_s: float, party: Members = ()) -> Home:
    """The shards of this run; without any, one is made in the first worker. Every rank calls it.

    Args:
        party: those that share one with this worker, where others have others; empty where all share them.

    Raises:
        ConfigError: no shard could be made, or this worker does not reach the directory with its keys.
        PeerError: somebody did not come.
    """
    keeper = party[0] if party else 0
    first = compare(transport, {"_host": world.host}, "start of the parameter server")
    hosts = {one["_host"] for rank, one in enumerate(first) if rank in party or not party}
    home, trouble = None, None
    if world.rank == keeper:
        try:
            home = _made(world, timeout_s, party, near=len(hosts) == 1)
        except (ConfigError, OSError) as error:
            trouble = f"the parameter server could not be made: {error}"
    announced = {"_trouble": trouble}
    if home is not None:
        announced |= {"_shards": str(home.shards), "_directory": str(home.directory)}
    all_said = compare(transport, announced, "start of the parameter server")
    if trouble := next((one["_trouble"] for one in all_said if one["_trouble"]), None):
        if home is not None:
            home.leave()
        raise ConfigError(trouble)
    said = all_said[keeper]
    directory = Path(said["_directory"])
    try:
        client_keys(directory)
    except ConfigError as error:
        if home is not None:
            home.leave()
        raise ConfigError(
            f"rank {world.rank} on {world.host} cannot read the keys of the parameter server: {error}. On several "
            f"machines it needs a run directory on a disk that all reach (uneven run --run-dir)"
        ) from error
    if home is not None:
        return home
    return Home(directory, int(said["_shards"]), world.host == first[keeper]["_host"], world, timeout_s, party)


def _made(world: World, timeout_s: float, party: Members, *, near: bool) -> Home:
    """For the first of those that share it.

    Args:
        near: whether they are all on this machine.
    """
    if world.run_directory is not None and (shards := shards_in(world.run_directory / SERVER)):
        if party:
            raise ConfigError("each site has one of its own, in its first worker: leave --servers out")
        return Home(world.run_directory / SERVER, shards, True, world, timeout_s)
    if world.elastic is not None:
        raise ConfigError("without --servers it would be in a worker, which may leave: say uneven run --servers 1")
    folder = TemporaryFolder(SHARD_FOLDER, None if near else world.run_directory)
    try:
        make_keys(folder.path)
        bind = LOOPBACK if near else f"tcp://{own_address(world.meeting)}"
        ranks = (*party, FOLLOWER) if party else None
        host = ShardHost(folder.path, 0, world.size, ranks=ranks, bind=bind)
    except BaseException:
        folder.remove()
        raise
    return Home(folder.path, 1, True, world, timeout_s, party, host, folder)
