"""Exchanges through the parameter server: each worker at its own pace."""
