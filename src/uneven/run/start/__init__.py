"""The start of a session: settings, connection to the other workers, checkpoint state and heap memory."""
