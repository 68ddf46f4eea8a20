"""The sum by hand in LitServe: JSON over HTTP, one API server and one worker.

python -m benchmarks.rivals.litserve_server MODEL
"""

from __future__ import annotations

import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import litserve

from benchmarks.rivals.scorers import ByHand, best
from ftrie.demo.processes import free_port


class Rank(litserve.LitAPI):  # type: ignore[misc, unused-ignore]
    """Answers {"items": [{"id", "ctr"}]} to {"user", "context", "item_ids", "top_k"}."""

    def __init__(self, model: Path) -> None:
        super().__init__()
        self._path = model

    def setup(self, device: str) -> None:
        self._scorer = ByHand(self._path)

    def predict(self, request: dict[str, Any]) -> list[tuple[str, float]]:
        rates = self._scorer.ctr(request["user"] | request["context"], request["item_ids"])
        return best(request["item_ids"], rates, request["top_k"])

    def encode_response(self, output: list[tuple[str, float]]) -> dict[str, Any]:
        return {"items": [{"id": item, "ctr": rate} for item, rate in output]}


def say_when_ready(port: int) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                if answer.status == 200:
                    break
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    print(f"listening on 127.0.0.1:{port}", flush=True)


if __name__ == "__main__":
    port = free_port()
    threading.Thread(target=say_when_ready, args=(port,), daemon=True).start()
    server = litserve.LitServer(Rank(Path(sys.argv[1])), accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=1,
        log_level="error",
        generate_client_file=False,
        access_log=False,
    )
