"""Vowpal Wabbit, libsvm and libffm text: rows that name their features one by one, as columns of weighted sets.

Start at `source.py`. `grammars.py` has what the three formats differ in but for their lines, which `kernels.py` reads
into tokens; `block.py` makes columns of them. Nothing here knows of specs and keys.
"""
