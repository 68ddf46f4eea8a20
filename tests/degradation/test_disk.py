"""docs/degradation.md, "The disk": full. It holds nothing but the last good models."""

from __future__ import annotations

from pathlib import Path

from model_store.store import Store
from tests.degradation.recovered import Recovered
from tests.degradation.system import Valkey, serving
from tests.degradation.whole_shop import WholeShop
from tests.server import shop
from tests.waiting import eventually

FILLER_BYTES = 4 << 20


def on_a_full_disk(state: Path) -> list[str]:
    """Runs a command that finds a file system of its own at `state`, 4 MiB large, and a file in it that fills it."""
    script = (
        f"mount -t tmpfs -o size={FILLER_BYTES} tmpfs {state} && "
        f"(head -c {FILLER_BYTES - 16384} /dev/zero > {state}/filler; head -c 65536 /dev/zero > {state}/rest; "
        f'exec "$@")'
    )
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]


def test_disk_is_full(valkey: Valkey, tmp_path: Path, recovered: Recovered) -> None:
    state = tmp_path / "state"
    state.mkdir()
    full = on_a_full_disk(state)
    with serving(valkey.url, tmp_path, within=full) as running, Store.open(valkey.url) as store:
        running.await_ready()
        whole = WholeShop(running, store)
        whole.answers_as(1, seed=1)
        eventually(lambda: "space" in running.model()["disk_problem"], "a problem with the disk")
        assert running.metric("ftrie_last_good_failed", model=shop.NAME) == 1
        version = whole.publish(seed=2)
        eventually(lambda: whole.serves(version), "the new version")
        assert running.healthy()
        inside = Path(f"/proc/{running.process.pid}/root{state}")
        (inside / "filler").unlink()
        recovered.then(lambda: not running.model()["disk_problem"], "the model is on disk")
        assert running.metric("ftrie_last_good_failed", model=shop.NAME) == 0
        assert list(inside.rglob("*.part"))
