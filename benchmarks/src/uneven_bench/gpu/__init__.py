"""``uneven bench gpu``: costs and gains of the library with workers on a GPU; one is enough."""
