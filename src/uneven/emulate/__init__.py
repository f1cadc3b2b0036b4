"""A described cluster on one machine, with real processes, real PyTorch and real sockets.

::

    files.load("demo4") ──► ClusterSpec ──► checks: can this machine do that?
                                │
                             Replay (pure): what is set on which node, when
                                │
                             Emulation: waits for the training to start, carries out, looks after the workers
                                │
                 ┌──────────────┴───────────────┐
             Isolated (root)                Throttled (anybody)
             namespaces, token buckets,     workers stopped and continued
             control groups, busy rivals

:func:`uneven.emulate.run.emulate` runs a script. Nothing is imported here, for a process passes through this package
on its way into each node.
"""
