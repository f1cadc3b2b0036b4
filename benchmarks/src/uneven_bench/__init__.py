"""Measurements that back a claim: everything compared runs interleaved, in one run, on one machine.

One file per claim. They live inside the package so that ``uneven bench`` works from an installed wheel.
"""
