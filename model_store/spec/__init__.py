"""The model spec: a TOML file read, checked and turned into immutable sections."""
