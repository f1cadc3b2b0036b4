"""The common context of all objects in a session: settings, participants, connection and journal."""
