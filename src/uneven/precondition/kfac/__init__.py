"""K-FAC: layers' factors, from sums that are exact on unequal shares."""
