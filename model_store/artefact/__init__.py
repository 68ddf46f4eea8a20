"""A model as sorted rows of key, weight, variants and rate; its changes, file formats and calibration."""
