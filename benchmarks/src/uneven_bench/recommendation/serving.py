"""Look-ups by other programs while one trainer trains: their latency, and what they cost the training."""

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from uneven.embedding.table_host import PROGRAM, TABLES
from uneven.embedding.table_service import SERVING
from uneven.errors import LaunchError
from uneven.runtime import launch
from uneven.runtime.messages.keys import client_keys
from uneven.runtime.messages.process import ShardKeeper
from uneven_bench.harness.program import wait_for
from uneven_bench.harness.show import Told
from uneven_bench.recommendation import worker
from uneven_bench.recommendation.model import DIM, FIELDS, Log

RATE_PER_S = 50.0  # look-ups, from one client
SAMPLES = (1, 128)  # of a look-up
ALONE = "no look-ups"
_BEGINS_WITHIN_S, _ANSWER_S = 60.0, 30.0

Ask = Callable[[bytes], int]
"""Looks a request up, and returns the numbers in the answer."""


def serve(rounds: int, window_s: float, told: Told) -> dict[str, Any]:
    """Train with one table server and ``uneven tables serve`` on the same machine; in each round one window without
    look-ups, and one for each face and size. Result: ``serve_ms`` (look-ups → ``p50`` and ``p99``, of all rounds, from
    the time at which a look-up was due), ``serve_per_s`` (asked for), ``serve_training`` (look-ups → examples a second
    ÷ those of the window without; median of the rounds)."""
    arms = [ALONE, *(f"{face}, {many}" for face in ("HTTP", "ZeroMQ") for many in SAMPLES)]
    took: dict[str, list[float]] = {name: [] for name in arms[1:]}
    spans: list[dict[str, tuple[float, float]]] = []
    with tempfile.TemporaryDirectory(prefix="uneven-serving-") as made, ExitStack() as stack:
        folder = Path(made)
        stack.enter_context(ShardKeeper(folder / TABLES, 1, 1, program=PROGRAM))
        script = (worker.__file__, "served", made, "--window-s", "600")
        start = launch.Launch(target=script, nproc="1")
        environment, printed = {"OMP_NUM_THREADS": "1"}, folder / "printed"
        running = stack.enter_context(launch.start(start, run_directory=folder, env=environment, output=printed))
        asks = stack.enter_context(_service(folder))
        wait_for((folder / "warm-0").exists, "the trainer", _BEGINS_WITHIN_S)
        bodies = {many: _body(many) for many in SAMPLES}
        for number in range(rounds):
            spans.append({})
            for place, name in enumerate(arms):
                told(name, (number + place / len(arms)) / rounds)
                began_s = time.time()
                if name == ALONE:
                    time.sleep(window_s)
                else:
                    face, many = name.split(", ")
                    took[name] += _asked(asks[face], bodies[int(many)], window_s, int(many))
                spans[-1][name] = began_s, time.time()
        (folder / worker.ENOUGH).touch()
        ending = running.wait(_BEGINS_WITHIN_S)
        if ending is None or ending.code:
            raise LaunchError(f"the trainer failed:\n{printed.read_text(errors='replace')[-2000:]}")
        ends = np.array([at for at, _ in json.loads((folder / "marks-0.json").read_text())["marks"]])
    return {
        "serve_ms": {name: quantiles(each) for name, each in took.items()},
        "serve_per_s": RATE_PER_S,
        "serve_training": {
            name: statistics.median(rate(ends, *one[name]) / rate(ends, *one[ALONE]) for one in spans) for name in took
        },
    }


def rate(ends_s: np.ndarray, from_s: float, to_s: float) -> float:
    """Return the batches a second between the first and the last end in a span."""
    inside = ends_s[(ends_s >= from_s) & (ends_s <= to_s)]
    return float((len(inside) - 1) / (inside[-1] - inside[0]))


def quantiles(took_s: list[float]) -> dict[str, float]:
    """Return p50 and p99 in ms."""
    return {f"p{part}": float(np.percentile(took_s, part)) * 1e3 for part in (50, 99)}


@contextmanager
def _service(folder: Path) -> Iterator[dict[str, Ask]]:
    """Start ``uneven tables serve``, and yield a client of each face."""
    command = [sys.executable, "-m", "uneven", "tables", "serve", str(folder), "--http", "0", "--zmq", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service, zmq.Context() as context:
        try:
            assert service.stdout is not None
            found = [service.stdout.readline().partition(" at ")[2].split(" ")[0].rstrip(",") for _ in range(2)]
            if not all(found):
                raise LaunchError("`uneven tables serve` did not begin; its reason is above")
            web = http.client.HTTPConnection(found[0].split("/")[2], timeout=_ANSWER_S)
            with context.socket(zmq.REQ) as line:
                line.rcvtimeo, line.linger = int(1e3 * _ANSWER_S), 0
                client_keys(folder / SERVING).join(line)
                line.connect(found[1])

                def over_http(body: bytes) -> int:
                    web.request("POST", "/lookup", body, {"Accept": "application/octet-stream"})
                    return len(web.getresponse().read().partition(b"\n")[2]) // 4

                def over_zeromq(body: bytes) -> int:
                    line.send(body)
                    return len(line.recv_multipart()[1]) // 4

                yield {"HTTP": over_http, "ZeroMQ": over_zeromq}
            web.close()
        finally:
            service.terminate()


def _body(samples: int) -> bytes:
    ids = Log().ids[:samples].T.tolist()
    return json.dumps({"ids": {f"t{place}": one for place, one in enumerate(ids)}}).encode()


def _asked(ask: Ask, body: bytes, window_s: float, samples: int) -> list[float]:
    """Return the seconds from the time at which each look-up was due to its answer."""
    took, began_s = [], time.perf_counter()
    for number in range(int(window_s * RATE_PER_S)):
        due_s = began_s + number / RATE_PER_S
        time.sleep(max(0.0, due_s - time.perf_counter()))
        if ask(body) != samples * FIELDS * DIM:
            raise LaunchError("a look-up had another number of numbers")
        took.append(time.perf_counter() - due_s)
    return took
