"""The model being learned: its table of coordinates, learners, admission and calibration."""
