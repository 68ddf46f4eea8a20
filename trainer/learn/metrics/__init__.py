"""Training metrics: log-loss, AUC and calibration, in whole, recent and per slice; sanity warnings."""
