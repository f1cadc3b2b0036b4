"""Run the body of a test in several real processes that are joined by gloo over the loopback.

::

    @ranks(4)
    def test_sum(me: RankContext) -> None:
        x = torch.tensor([me.rank])
        torch.distributed.all_reduce(x)
        assert x.item() == 6

Processes are forked from one that has imported torch, and reused: each test gets a new store, process group,
environment and seed. After a failure all are killed and the next test forks new ones. They end with their parent.
"""

import atexit
import inspect
import os
import selectors
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, UnevenError
from uneven.testing.fork_client import ForkServer
from uneven.testing.rank_process import Answer, RankProcess

START_LIMIT_S = 120.0  # for importing torch; long, because the machine may be busy


# After the first failure the other ranks may report theirs for this time, because the cause may come last.
GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class RankContext:
    """The rank and size of a process, given to the body as its first argument."""

    rank: int
    size: int


class RankFailure(UnevenError, AssertionError):
    """A failure of a body on some rank."""

    def __init__(self, kind: str, rank: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind  # "failed" (it raised), "killed" (its process ended without an answer) or "hung"
        self.rank = rank  # the first rank to fail, as far as known


def ranks(
    n: int,
    *,
    timeout_s: float = 60.0,
    join: bool = True,
    fresh: bool = False,
    check: Callable[[list[Any]], None] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Turn a function of module level into a test that runs in ``n`` processes.

    Its first parameter gets a :class:`RankContext`; the others are arguments or pytest fixtures, of JSON types or paths
    (which arrive as text)::

        @ranks(2)
        def test_sum(context: RankContext):
            total = torch.tensor(context.rank)
            torch.distributed.all_reduce(total)
            assert total == 1

    Args:
        timeout_s: for the body, without the start of the processes.
        join: call ``init_process_group("gloo")`` first; False leaves that to the body. A launcher's variables are set.
        fresh: use new processes; a body with lasting effects needs them.
        check: called in the parent with the results of the bodies, by rank.

    Raises:
        ConfigError: the function is not at module level, so no other process could import it.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., None]:
        _importable(body)

        def test(*args: Any, **kwargs: Any) -> None:
            results = run_ranks(n, body, *args, timeout_s=timeout_s, join=join, fresh=fresh, **kwargs)
            if check is not None:
                check(results)

        signature = inspect.signature(body)
        given = list(signature.parameters.values())[1:]  # pytest must not look for a fixture named as the context
        test.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
        test.__name__, test.__qualname__, test.__module__ = body.__name__, body.__qualname__, body.__module__
        test.__doc__ = body.__doc__
        test.rank_body = body  # type: ignore[attr-defined]  # the child finds `test` under this name, and runs this
        return test

    return decorate


def run_ranks(
    n: int,
    body: Callable[..., Any],
    *args: Any,
    timeout_s: float = 60.0,
    join: bool = True,
    fresh: bool = False,
    **kwargs: Any,
) -> list[Any]:
    """Run ``body(RankContext, *args, **kwargs)`` in ``n`` processes and return the results, by rank.

    ``timeout_s``, ``join`` and ``fresh`` are as in :func:`ranks`. In a test::

        assert run_ranks(2, my_module.sum_of_ranks) == [1, 1]

    Raises:
        RankFailure: it raised, was killed, or hung on some rank; the message has that rank's traceback.
        ConfigError: the body or its arguments cannot be sent to another process.
    """
    task = {
        "op": "run",
        "module": _importable(body),
        "name": body.__name__,
        "args": [_plain(value) for value in args],
        "kwargs": {key: _plain(value) for key, value in kwargs.items()},
        "path": sys.path,
        "directory": str(Path.cwd()),
        "environment": dict(os.environ),
        "timeout_s": timeout_s,
        "join": join,
    }
    succeeded = False
    try:
        if fresh:
            _end_ranks()
        processes = _started(n)
        processes[0].send({"op": "store", "timeout_s": timeout_s})
        port = _answers(processes[:1], START_LIMIT_S)[0]
        for rank, process in enumerate(processes):
            process.send({**task, "rank": rank, "size": n, "port": port})
        results = _answers(processes, timeout_s)
        succeeded = True
    finally:
        if fresh or not succeeded:
            _end_ranks()
    return results


_pool: list[RankProcess] = []
_fork_server = ForkServer()


def fork_server() -> ForkServer:
    """Return the fork server of the processes; it ends at the latest with this process."""
    # Unregistered first, because atexit would call a function as often as it is registered.
    atexit.unregister(stop_pool)
    atexit.register(stop_pool)
    return _fork_server


def pool_pids() -> frozenset[int]:
    """Return the PIDs of the ranks that are kept for the next test."""
    return frozenset(process.pid for process in _pool)


def kept_pids() -> frozenset[int]:
    """Return the PIDs of kept ranks and their fork server, which leak checks must ignore."""
    return pool_pids() if _fork_server.pid is None else pool_pids() | {_fork_server.pid}


def stop_pool() -> None:
    """Kill every process forked for a test, with all that it has started. The next test starts new ones."""
    _end_ranks()
    _fork_server.close()


def _end_ranks() -> None:
    while _pool:
        _pool.pop().kill()


def _started(n: int) -> list[RankProcess]:
    if any(process.poll().kind == "killed" for process in _pool):
        _end_ranks()
    new = [RankProcess(fork_server()) for _ in range(n - len(_pool))]
    _pool.extend(new)
    _answers(new, START_LIMIT_S)
    return _pool[:n]


def _answers(processes: list[RankProcess], limit_s: float) -> list[Any]:
    """Return an answer of each process, or raise the failure that explains most."""
    answers: dict[int, Answer] = {}
    deadline = time.monotonic() + limit_s
    troubled = False
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.replies, selectors.EVENT_READ)
        while len(answers) < len(processes) and (left := deadline - time.monotonic()) > 0:
            selector.select(min(left, 0.05))  # short, because a death does not always close the pipe
            for rank, process in enumerate(processes):
                if rank not in answers and (answer := process.poll()).kind != "busy":
                    answers[rank] = answer
                    if answer.kind in ("failed", "killed") and not troubled:
                        troubled, deadline = True, min(deadline, time.monotonic() + GRACE_S)
    for process in processes:
        process.relay_output()
    if troubled or len(answers) < len(processes):
        raise _failure(processes, answers, limit_s)
    return [answers[rank].value for rank in range(len(processes))]


def _failure(processes: list[RankProcess], answers: dict[int, Answer], limit_s: float) -> RankFailure:
    """Describe the failure: a killed process explains failures elsewhere, and a failure explains waiting processes."""
    silent = [rank for rank in range(len(processes)) if rank not in answers]
    killed = [rank for rank in answers if answers[rank].kind == "killed"]
    failed = [rank for rank in answers if answers[rank].kind == "failed"]
    lines = [f"rank {rank} killed: {answers[rank].text}" for rank in killed]
    lines += [f"rank {rank} failed:\n{answers[rank].text}" for rank in failed]
    what = "was at work then, here:" if lines else f"hung: no answer within {limit_s:g} s, here:"
    for rank in silent:
        lines.append(f"rank {rank} {what}\n{processes[rank].stacks()}")
    for kind, who in (("killed", killed), ("failed", failed), ("hung", silent)):
        if who:
            return RankFailure(kind, who[0], "\n".join(lines))
    raise AssertionError("no rank failed")


def _importable(body: Callable[..., Any]) -> str:
    if body.__qualname__ != body.__name__ or body.__module__ == "__main__":
        raise ConfigError(
            f"{body.__module__}.{body.__qualname__} cannot run on several ranks: define it at the top level of a "
            "module that is not the main script"
        )
    return body.__module__


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(
        f"an argument of type {type(value).__name__} cannot be sent to another process: pass numbers, text, paths, "
        "lists or dictionaries of them, and make other objects in the body"
    )
