"""Contents of the report's page, as data."""
