"""Running servers: one on the shop's model, and three that name themselves."""

from __future__ import annotations

from tests.ftrie.test_balance import servers
from tests.server.conftest import client, server, shop_store, start

__all__ = ["client", "server", "servers", "shop_store", "start"]
