"""Run by ``uneven run --servers``: workers count together under SSP, and the first kills a shard meanwhile."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from uneven.runtime.parameter_server import Client, ZmqLine, table_of
from uneven.runtime.world import discover

STEPS = 60

world = discover()
assert world.run_directory is not None
arrays = [np.zeros(1000, np.float32)]
line = ZmqLine.of_run(world.run_directory)
client = Client(world.rank, table_of([(1000,)], "float32", line.shards), arrays, line)
for step in range(STEPS):
    client.push_pull(step, [np.ones(1000, np.float32)], clock=max(0, step - 2)).into(arrays)
    if world.rank == 0 and step == 20:
        where = json.loads((world.run_directory / "server" / "shard-0.address").read_text())
        os.kill(where["pid"], signal.SIGKILL)
client.pull(STEPS).into(arrays)
client.close()
Path(sys.argv[1], f"held-{world.rank}").write_text(str(sorted(set(arrays[0].tolist()))))
