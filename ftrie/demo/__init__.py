"""The demo: a simulated shop whose true click rates are known, and a run of the whole loop over it."""
