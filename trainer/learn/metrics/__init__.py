"""Training metrics: log-loss, AUC and calibration over all rows, per window and per slice; model warnings."""
