"""Muon: momentum whose matrices are orthogonalised by their owners."""
