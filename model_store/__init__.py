"""What trainer and server share: the model spec, feature keys, artefacts and the store. Imports neither of them."""
