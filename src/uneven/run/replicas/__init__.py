"""Exchanges of whole replicas: among peers, through a parameter server, or of single entries between sites."""
