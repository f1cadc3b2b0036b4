"""Network devices whose frames a process reads and writes. Linux only.

After the kernel's ``Documentation/networking/tuntap.rst``. Frames have a virtio header with the work left to the
network card (checksums, segmentation), so large ones stay whole.
"""

import os
import struct

DOOR = "/dev/net/tun"

_MAKE = 0x400454CA  # TUNSETIFF
_OFFLOAD = 0x400454D0  # TUNSETOFFLOAD
_KIND = 0x0002 | 0x1000 | 0x4000  # IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
_CARD_DOES = 0x01 | 0x02 | 0x04 | 0x08  # TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN


def open_tap(name: str) -> int:
    """Return a descriptor of a new device in the calling thread's network namespace; closing it removes the device.
    Raises OSError if the kernel rejects it or ``/dev/net/tun`` is missing."""
    import fcntl  # Windows has none, and its `uneven emulate --help` imports this module

    descriptor = os.open(DOOR, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _MAKE, struct.pack("16sH22x", name.encode(), _KIND))
        fcntl.ioctl(descriptor, _OFFLOAD, _CARD_DOES)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
