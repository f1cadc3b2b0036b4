"""Plain frozen data that every part speaks: records, views, actions, costs. Pure.

Nothing in this package imports torch, starts a thread, opens a socket or reads a clock
(``tests/test_architecture.py`` sees to it).
"""
