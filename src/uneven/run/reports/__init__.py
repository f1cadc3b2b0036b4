"""Measurements become reports, and everybody's reports a split; and what the journal keeps."""
