"""Measurements that back a claim: all compared methods run interleaved, in one run, on one machine.

One folder or file for each claim, with ``run`` and ``tables``; :mod:`uneven_bench.commands` has their command lines.
"""
