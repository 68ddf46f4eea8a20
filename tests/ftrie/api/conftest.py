"""Three servers that name themselves."""

from tests.ftrie.test_balance import servers

__all__ = ["servers"]
