"""``python -m uneven_bench.elastic.inside NAMESPACE NAME HOSTS MODULE …``: MODULE, on an emulated network.

NAMESPACE is the file of a network namespace, NAME the machine's host name, HOSTS its ``/etc/hosts``.
"""

import os
import runpy
import socket
import sys

from uneven.cluster.emulate import kernel

_NEW_NAME = 0x04000000  # CLONE_NEWUTS

if __name__ == "__main__":
    _, namespace, name, hosts, module, *rest = sys.argv
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    kernel.enter(descriptor, kernel.NEW_NETWORK)
    os.close(descriptor)
    kernel.unshare(_NEW_NAME)
    socket.sethostname(name)  # torchft sends this name to the others
    kernel.own_shared_memory()
    kernel.own_hosts(hosts)
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
