"""K-FAC: layers' factors, from sums that are exact for unequal shares."""
