"""Vowpal Wabbit, libsvm and libffm text: rows that name their features one by one, as columns of weighted sets.

Start at `source.py`. `grammars.py` has what the three formats differ in but for their lines. `kernels.py` reads the
lines, by the grammars in `vw/` and `indexed/`, into the tokens of `rows/`; `block.py` makes columns of them. Nothing
here knows of keys.
"""
