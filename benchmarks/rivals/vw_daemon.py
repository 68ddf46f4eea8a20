"""Vowpal Wabbit's own daemon, which is in its Python wheel: multi-line examples over TCP, scores back.

    python -m benchmarks.rivals.vw_daemon MODEL

`vw --daemon` of a package does the same; the wheel has no `vw`, and Debian 12 no package.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHILDREN = 4  # each serves one connection at a time

# The constructor forks the children, and returns in each of them once it has a connection.
_DAEMON = """
import sys, pylibvw
from vowpalwabbit import Workspace
pylibvw.vw.run_parser(Workspace(sys.argv[1]))
"""


def main(model: Path) -> None:
    """Serve until terminated; prints the address."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        port = Path(folder) / "port"
        flags = f"--quiet -t -i {model.with_suffix('.vw')} --daemon --foreground --num_children {CHILDREN}"
        command = [sys.executable, "-c", _DAEMON, f"{flags} --port 0 --port_file {port}"]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        daemon = subprocess.Popen(command, start_new_session=True)
        try:
            while not (port.exists() and port.read_text().strip()) and daemon.poll() is None:
                time.sleep(0.05)
            print(f"listening on 127.0.0.1:{port.read_text().strip()}", flush=True)
            daemon.wait()
        finally:
            os.killpg(daemon.pid, signal.SIGKILL)  # its children end with it; none of them hears SIGTERM


if __name__ == "__main__":
    main(Path(sys.argv[1]))
