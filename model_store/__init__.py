"""What trainer and server must agree on: the spec, the keys, the artefact, the store. Imports neither of them."""
