"""docs/degradation.md, "The disk": full, unwritable, damaged. It holds nothing but the last good models."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from ftrie.client import RankFailed
from model_store.store import Store
from tests.degradation.system import Valkey, eventually, serving
from tests.server import shop

FILLER_BYTES = 4 << 20


def on_a_full_disk(state: Path) -> list[str]:
    """Runs a command that finds a file system of its own at `state`, 4 MiB large, and a file in it that fills it."""
    script = (
        f"mount -t tmpfs -o size={FILLER_BYTES} tmpfs {state} && "
        f"(head -c {FILLER_BYTES - 16384} /dev/zero > {state}/filler; head -c 65536 /dev/zero > {state}/rest; "
        f'exec "$@")'
    )
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]


def test_disk_is_full(valkey: Valkey, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    full = on_a_full_disk(state)
    with serving(valkey.url, tmp_path, within=full) as running, Store.open(valkey.url) as store:
        running.await_ready()
        eventually(lambda: "space" in running.model()["disk_problem"], "a problem with the disk")
        eventually(lambda: running.metric("ftrie_last_good_failed", model=shop.NAME) == 1, "its metric")
        version = shop.publish(store, seed=2)
        eventually(lambda: running.client.rank(candidates=["item-1"]).version == version, "the new version")
        assert running.client.rank(candidates=["item-1"]).degraded == ()
        assert running.healthy()
        inside = Path(f"/proc/{running.process.pid}/root{state}")
        (inside / "filler").unlink()
        shop.publish(store, seed=3)
        eventually(lambda: not running.model()["disk_problem"], "a copy on the disk")
        assert list(inside.rglob("*.part"))


def test_copy_on_disk_is_damaged(valkey: Valkey, tmp_path: Path) -> None:
    with serving(valkey.url, tmp_path) as running:
        running.await_ready()
    parts = sorted((tmp_path / "state").rglob("*.part"))
    assert parts
    for part in parts:
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(bytes(data))
    valkey.kill()
    with serving(valkey.url, tmp_path) as running:
        with pytest.raises(RankFailed) as failed:
            running.client.rank(candidates=["item-1"])
        assert failed.value.code is grpc.StatusCode.UNAVAILABLE
        assert not running.healthy()
        valkey.start()
        with Store.open(valkey.url) as store:
            shop.fill(store)
        running.await_ready()
        assert running.client.rank(candidates=["item-1"]).degraded == ()
