"""Calibration curves fitted on progressive predictions, in bounded memory. Applying them is `model_store`'s."""
