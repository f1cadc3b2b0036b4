"""The machine: processes, launchers, stores, messages and the parameter server."""
