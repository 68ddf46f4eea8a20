"""The commands' tests run against the same server as those of `tests/server`."""

from tests.server.conftest import client, server, shop_store, start

__all__ = ["client", "server", "shop_store", "start"]
