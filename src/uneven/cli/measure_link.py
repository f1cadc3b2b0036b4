"""The command ``uneven measure-link``: the rate and the latency between two machines."""

import sys
import threading
from dataclasses import asdict
from typing import Annotated

from uneven.cli import answer
from uneven.cli.options import argument, option, switch
from uneven.errors import ConfigError

_PORT = 29550  # of runtime.link_probe, which is imported later


def command(
    host: Annotated[str | None, argument("[HOST]", "The listening machine.")] = None,
    listen: Annotated[bool, switch("Answer another machine, until Ctrl-C.", "--listen")] = False,
    address: Annotated[str, option("HOST", "With --listen: address of this machine.", "--host")] = "127.0.0.1",
    port: Annotated[int, option("PORT", "Port of the listener.", min=0, max=65535)] = _PORT,
    flows: Annotated[int, option("N", "Connections at the same time.", min=1, max=32)] = 8,
    seconds: Annotated[float, option("SECONDS", "Duration of each of four transfers.", min=0.1, max=60.0)] = 2.0,
    timeout: Annotated[float, option("SECONDS", "Time to wait for the other machine.", min=0.1)] = 10.0,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Measure the link between two machines, and print the lines for a cluster description.

    One connection, then several at the same time, in both directions, and the round trip. The rates are payload. Start
    the listener on the other machine first. It has no password and sends only zeros: give an address of a trusted
    network. The processor limits links of tens of Gbit/s: measure those with iperf3.

    Exit codes: 0 measured; 1 the other machine does not answer; 2 wrong option; 130 stopped with Ctrl-C.

    \b
    Examples:
      uneven measure-link --listen --host 10.0.0.2     on one machine, and on the other:
      uneven measure-link 10.0.0.2
    """
    from uneven.runtime import link_probe

    if (host is None) != listen:
        raise ConfigError("measure-link: give either HOST, or --listen on the other machine")
    if host is None:
        link_probe.listen(
            address,
            port,
            lambda bound: print(f"uneven: listening on {address}:{bound}; Ctrl-C ends it", file=sys.stderr),
            timeout_s=timeout,
            stop=threading.Event(),
        )
        return
    found = link_probe.measure(host, port, seconds=seconds, flows=flows, timeout_s=timeout)
    if form is answer.Form.JSON:
        answer.write({"host": host, **asdict(found), "lines": found.lines()})
        return
    from uneven.cluster.pure.plan.reasons import bits

    print(f"up, to {host}: {bits(found.flow_up_bit_per_s)} by one connection, {bits(found.up_bit_per_s)} by {flows}")
    print(f"down: {bits(found.flow_down_bit_per_s)} by one connection, {bits(found.down_bit_per_s)} by {flows}")
    print(f"round trip: {found.round_trip_s * 1e3:.3g} ms, jitter {found.jitter_s * 1e3:.3g} ms")
    print("\nLines for [defaults] or [[nodes]]:\n")
    print("\n".join(found.lines()))
