"""`ftrie` for typed commands: a process of its own for each, forked from one that has imported everything.

Imports are most of what a short command takes. `python -m tests.repository.forked SOCKET` listens on that path. CLIENT
is the program `ftrie`: it hands over its arguments, environment, folder and standard streams, passes signals on, and
ends as the command ends. `--processor-time` counts all of these commands where the listening process ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READY = "ready\n"
MOST_BYTES = 1 << 20
HEAVY = ("ftrie", "ftrie.api", "server.serve.supervisor", "trainer.runs.train", "trainer.runs.trainer")

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({path!r})
    told = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [told], [0, 1, 2])
    pid = int(server.recv(100))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(pid, number))
    server.send(b"handlers are there")
    code = int(server.recv(100))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def forking(folder: Path) -> Iterator[str]:
    """Yields the text of the program `ftrie` while the process runs from which it forks; the folder's path is short."""
    path = folder / "ftrie.socket"
    command = [sys.executable, "-m", "tests.repository.forked", str(path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == READY
            yield CLIENT.format(python=sys.executable, path=str(path))
        finally:
            process.terminate()


def _serve(path: str) -> int:
    """Fork for each client, until SIGTERM, in any process returns its exit code."""
    from ftrie.command import all_commands

    all_commands()  # imports their modules
    for name in HEAVY:
        import_module(name)
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    threads = [name for name in threads if name != "jemalloc_bg_thd"]  # which a fork stops in good order
    assert len(threads) == 1, f"{threads}: a fork has only one of them"
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(_reap()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(16)
        sys.stdout.write(READY)
        sys.stdout.flush()
        while True:
            client, _ = listener.accept()
            _reap()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                break
            client.close()
    return _command(client)


def _reap() -> int:
    """Wait for those that have ended, so that their processor time is counted."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return 0


def _command(client: socket.socket) -> int:
    """Fork the command, and tell the client how it ended; returns in the command's process."""
    told, descriptors, _, _ = socket.recv_fds(client, MOST_BYTES, 3)
    pid = os.fork()
    if pid == 0:
        client.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return _run(*json.loads(told))
    for descriptor in descriptors:
        os.close(descriptor)
    os.close(1)
    client.send(b"%d" % pid)
    client.recv(100)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):  # it was killed
        client.send(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run(arguments: Sequence[str], folder: str, environment: dict[str, str]) -> int:
    from ftrie.cli import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["ftrie", *arguments]
    main()
    return 0


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
