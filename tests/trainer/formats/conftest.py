"""What the tests of logs share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose files are written again for each example of Hypothesis."""
    return tmp_path_factory.mktemp("scratch")
