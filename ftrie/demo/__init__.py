"""The demo: a simulated shop whose true click rates are known, and the whole loop run over it."""
