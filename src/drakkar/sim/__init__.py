"""Room ``sim``: what stands in for the real world. So far: fleets described in a file."""
