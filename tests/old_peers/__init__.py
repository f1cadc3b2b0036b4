"""The replica as it was, against which the new one is compared."""
