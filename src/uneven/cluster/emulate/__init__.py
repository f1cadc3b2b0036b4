"""A described cluster on one machine, with real processes, real PyTorch and real sockets.

::

    files.load("demo4") ──► ClusterSpec ──► checks: can this machine emulate it?
                                │
                             Replay (pure): settings of each node over time
                                │
                             Emulation: waits for the training to start, applies settings, supervises workers
                                │
                 ┌──────────────┴───────────────┐
             Isolated (root)                Throttled (any user)
             namespaces, token buckets,     workers stopped and continued
             control groups, busy rivals

:func:`uneven.cluster.emulate.emulation.emulate` runs a script. It imports nothing here, because each node's process
imports this package.
"""
