"""The `ftrie` command, the Python client, the reports and the demo. No other package imports this one."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ftrie")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"
