"""h2load, a load generator in C (Debian: nghttp2-client), so that on few cores nearly all is left to the server.

It sends one body over and over: several of them at a time send several.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ftrie.api.client import METHOD

CONNECTIONS = 16
WARM_UP_S = 1
_TIMES = re.compile(r"finished in ([\d.]+)s, ([\d.]+) req/s")
_REQUESTS = re.compile(
    r"(\d+) total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout"
)
_DATA = re.compile(r"space savings [\d.]+%\), [\d.]+\w+ \((\d+)\) data")


@dataclass(frozen=True)
class Load:
    """What all of them made together: calls a second, CPU seconds and wall seconds, the warm-up included."""

    calls_per_second: float
    cpu_s: float
    seconds: float


def there() -> bool:
    """Whether it is installed; says so where it is not."""
    found = shutil.which("h2load") is not None
    if not found:
        print("h2load is missing, nothing is measured: apt install nghttp2-client")
    return found


def run(address: str, bodies: Sequence[Path], seconds: int) -> Load:
    """One h2load a body, all at once, each with CONNECTIONS connections and one call at a time on each.

    Raises RuntimeError if a call fails. h2load sees only HTTP's status, which is 200 for an error of gRPC too: that has
    no message, so the bytes received tell.
    """
    began = time.monotonic()
    running = [subprocess.Popen(_command(address, body, seconds), **_PIPES) for body in bodies]  # type: ignore[call-overload]
    outputs, cpu = [], 0.0
    for one in running:
        outputs.append(one.stdout.read())
        _, status, used = os.wait4(one.pid, 0)
        one.returncode = os.waitstatus_to_exitcode(status)
        one.stdout.close()
        cpu += used.ru_utime + used.ru_stime
    return Load(sum(map(_calls_per_second, outputs)), cpu, time.monotonic() - began)


_PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def _command(address: str, body: Path, seconds: int) -> list[str]:
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    timing = [f"--duration={seconds}", f"--warm-up-time={WARM_UP_S}"]
    load = ["-c", str(CONNECTIONS), "-m", "1", "-t", "1"]
    return ["h2load", *timing, *load, *headers, "-d", str(body), f"http://{address}{METHOD}"]


def _calls_per_second(output: str) -> float:
    times, requests, data = _TIMES.search(output), _REQUESTS.search(output), _DATA.search(output)
    if times is None or requests is None or data is None:
        raise RuntimeError(f"h2load said what is not understood:\n{output[-2000:]}")
    _, done, succeeded, failed, errored, timeout = map(int, requests.groups())
    if failed or errored or timeout or succeeded < done or int(data[1]) < 50 * succeeded:
        raise RuntimeError(f"calls failed:\n{output[-2000:]}")
    return float(times[2])
