"""The location of a session's parameter server: in shards that ``uneven run --servers`` has started, or in a worker.

Without servers one shard is a thread of rank 0, or of each site's first worker if each site has a server. So the run
depends on that worker only. The shard ends when no other worker needs it.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from uneven.errors import ConfigError
from uneven.run.lines.transport import Transport
from uneven.run.replicas.server.site_bridge import BetweenSites
from uneven.run.samples.async_sampling.evaluation_barrier import ShutdownHandshake
from uneven.run.start.connect import compare
from uneven.runtime.messages.keys import SERVER, client_keys, shards_in
from uneven.runtime.messages.peer_messages import own_address
from uneven.runtime.parameter_server import ShardHost, ZmqLine, make_keys
from uneven.runtime.parameter_server.pure.roster import FOLLOWER
from uneven.runtime.parameter_server.shard_host import LOOPBACK
from uneven.runtime.rundir import GIVES_UP_WITHIN_S, Expendable, mark_expendable
from uneven.runtime.temp_dir import SHARD_FOLDER, TemporaryFolder
from uneven.runtime.world import World

Members = tuple[int, ...]

_LOOK_S = 0.05
_APART = "other sites wait for updates of its site"
_HELD = "it was the parameter server; `uneven run --servers 1` gives it a separate process"


@dataclass(slots=True)
class ServerLocation:
    """One worker's access to the shards.

    Attributes:
        local: whether shards on this machine may be accessed without encryption, through a socket that only its owner
            can open; not if network namespaces emulate machines.
        timeout_s: longest wait of an exchange.
        party: workers that share it, if each site has one; empty if all do.
        host: the shard in this process, if any.
        own: the directory, if it was made for that shard.
        between: that shard's exchange with other sites, if any.
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
        """Report to the launcher whether the others can continue if this worker dies.

        ``training`` is False before this worker trains: others may do so already, and can finish without it.
        """
        if self.world.run_directory is not None:
            stops = _APART if self.party else "" if self.host is None else _HELD
            mark = Expendable(stops, self.timeout_s + GIVES_UP_WITHIN_S, training)
            mark_expendable(self.world.run_directory, self.world.rank, mark)

    def line(self) -> ZmqLine:
        return ZmqLine(self.directory, self.shards, local=self.local)

    def close(self, shutdown: ShutdownHandshake, timeout_s: float, *, failed: bool) -> None:
        """Release the shards; if one is in this process and nothing has failed, wait for the workers that still need
        it.
        Raises :class:`PeerError` if the workers' store does not answer."""
        # After a failure the mark of `begun` must stay: the death that follows is one in training.
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
        """End the shard in this process, if any; idempotent. Raises :class:`PeerError` if it had ended with an
        error."""
        host, self.host = self.host, None
        own, self.own = self.own, None
        try:
            if host is not None:
                host.close()
        finally:
            if own is not None:
                own.remove()


def _wait(host: ShardHost, shutdown: ShutdownHandshake, timeout_s: float, party: Members) -> None:
    """Wait until every other worker of ``party`` has closed its session or stopped sending; give up on absent ones
    in time."""
    limit_s = time.monotonic() + timeout_s
    others = [rank for rank in shutdown.others if rank in party or not party]
    while others:
        others = [rank for rank in others if not shutdown.is_done(rank) and host.shard.here(rank) is not False]
        if not any(host.shard.here(rank) for rank in others) and time.monotonic() > limit_s:
            return
        time.sleep(_LOOK_S if others else 0.0)


def find_home(
    transport: Transport, world: World, timeout_s: float, party: Members = (), *, stays: bool = True
) -> ServerLocation:
    """Find the shards of this run; without any, make one in the first worker. Every rank calls it.

    Args:
        stays: whether the first worker cannot leave.
        party: ranks that share a server with this worker if each site has one; empty if all share it.

    Raises:
        ConfigError: no shard could be made, or this worker cannot read its keys.
        PeerError: a worker did not come.
    """
    keeper = party[0] if party else 0
    first = compare(transport, {"_host": world.host}, "start of the parameter server")
    hosts = {one["_host"] for rank, one in enumerate(first) if rank in party or not party}
    # An error is announced to all ranks before it is raised, so that no rank waits for a failed one.
    home, trouble = None, None
    if world.rank == keeper:
        try:
            home = _made(world, timeout_s, party, near=len(hosts) == 1, stays=stays)
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
            f"rank {world.rank} on {world.host} cannot read the keys of the parameter server: {error}. Several "
            "machines need a run directory on shared storage (uneven run --run-dir)"
        ) from error
    if home is not None:
        return home
    shards, here = int(said["_shards"]), world.host == first[keeper]["_host"]
    return ServerLocation(directory, shards, here, world, timeout_s, party)


def _made(world: World, timeout_s: float, party: Members, *, near: bool, stays: bool) -> ServerLocation:
    """Return the location for the first worker of ``party``; ``near`` if all of them are on this machine."""
    if world.run_directory is not None and (shards := shards_in(world.run_directory / SERVER)):
        if party:
            raise ConfigError("each site has its own, in its first worker: leave --servers out")
        return ServerLocation(world.run_directory / SERVER, shards, True, world, timeout_s)
    if not stays:
        raise ConfigError("without --servers it would be in a worker, which may leave: use uneven run --servers 1")
    folder = TemporaryFolder(SHARD_FOLDER, None if near else world.run_directory)
    try:
        make_keys(folder.path)
        bind = LOOPBACK if near else f"tcp://{own_address(world.meeting)}"
        ranks = (*party, FOLLOWER) if party else None
        host = ShardHost(folder.path, 0, world.size, ranks=ranks, bind=bind)
    except BaseException:
        folder.remove()
        raise
    return ServerLocation(folder.path, 1, True, world, timeout_s, party, host, folder)
