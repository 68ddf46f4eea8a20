"""`python -m ftrie` is the `ftrie` command."""

from __future__ import annotations

import os
import sys

# Python puts the working directory first, where a folder `server` or `trainer` of the user would replace ftrie's.
if not sys.flags.safe_path and sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

from ftrie.cli import main

if __name__ == "__main__":
    main()
