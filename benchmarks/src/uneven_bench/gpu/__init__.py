"""``uneven bench gpu``: what the library costs and gains where workers compute on a GPU; one is enough."""
