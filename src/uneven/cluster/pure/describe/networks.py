"""The part of its rate that a link carries, by its kind of network.

Each default has a source, and a measured value replaces it: ``uneven measure-link`` measures one, and
``uneven simulate --calibrate`` fits one to measured steps.
"""

from typing import NamedTuple


class Carried(NamedTuple):
    """The payload that arrives of a link's rate."""

    achieved: float | None  # payload of all connections together, relative to the rate; None: the workload's framing
    flow_bit_per_s: float | None  # the most payload of one connection; None is unlimited


FULL_FRAMES = 1448 / 1538
"""The payload of TCP with time stamps in a full Ethernet frame, with its preamble and gap (IEEE 802.3)."""

NETWORKS = {
    "ethernet": Carried(FULL_FRAMES, None),
    # Amazon EC2, "Instance network bandwidth": one flow has 5 Gbit/s, and 10 Gbit/s inside a cluster placement group.
    # NCCL has 14.9 of 20 Gbit/s on four g6e.2xlarge (diloco-measured). We assume the same part of a flow's limit.
    "cloud": Carried(0.745, 0.745 * 5e9),
    "cloud-group": Carried(0.745, 0.745 * 10e9),
    # NCCL's all-reduce over 100 Gbit/s without GPUDirect RDMA has 6 of 12.5 GB/s: NVIDIA/nccl, issue 465.
    "infiniband": Carried(0.48, None),
}
"""The defaults by kind of network."""
