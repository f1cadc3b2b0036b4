"""Exchanges of parameters among workers: a policy's plans, carried out in the foreground or in the background."""
