"""A process that competes for processor time: ``python -m uneven.cluster.emulate.rival``.

It reads the busy part of its time, 0 … 1, from standard input, one number per line, and ends with it.
"""

import os
import select
import time

_CYCLE_S = 0.05


def main() -> None:
    duty = 0.0
    while True:
        began_s = time.monotonic()
        while time.monotonic() < began_s + duty * _CYCLE_S:
            pass
        rest_s = max(began_s + _CYCLE_S - time.monotonic(), 0.0) if duty else None
        if select.select([0], [], [], rest_s)[0]:
            text = os.read(0, 4096)
            if not text:
                return
            duty = float(text.split()[-1])


if __name__ == "__main__":
    main()
