"""Exchanges of parameters among workers: what a policy plans, carried in the foreground or in the shadow."""
