"""`python -m ftrie` is the `ftrie` command."""

from __future__ import annotations

from ftrie.cli import main

if __name__ == "__main__":
    main()
