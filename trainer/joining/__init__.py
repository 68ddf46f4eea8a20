"""The join: shown items meet their clicks within a window, and become examples."""
