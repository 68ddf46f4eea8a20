"""Small faults put into the product one by one, each of which some test must find.

    .venv/bin/python -m tests.mutations                 all of them, each in half a minute to some minutes
    .venv/bin/python -m tests.mutations --only lease    those whose name contains this; --json for figures
    .venv/bin/python -m tests.mutations --jobs 2        two at a time, each in a copy of its own

Works on copies of the files that git tracks; the checkout is never changed. Not collected by pytest. A test finds a
fault if it fails with it and passes without it. A fault that survives needs a test; one that changes nothing that can
be seen is to be replaced by another.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[1]
MOST_S = 600.0
JOIN = ("tests/machines/test_join.py", "tests/trainer/events")
STORE = (
    "tests/machines/test_versions.py",
    "tests/model_store/versions",
    "tests/trainer/runs/test_one_trainer.py",
)
DELTA = ("tests/model_store/artefact/test_deltas.py", "tests/trainer/publish", "tests/server/sync")
LAST_GOOD = ("tests/sweeps/test_file_sweeps.py", "tests/server/sync")
GUARD = ("tests/trainer/publish",)
GATE = (
    "tests/server/serve/test_gate.py",
    "tests/server/serve/test_together.py",
    "tests/server/serve/test_tokens.py",
)
RESUME = ("tests/sweeps/test_file_sweeps.py", "tests/trainer/checkpoint", "tests/trainer/runs", "tests/loop")


@dataclass(frozen=True)
class Mutation:
    """In `file`, `before`, which occurs once, becomes `after`; one of these tests is to fail."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


KERNEL = "trainer/events/join_kernels.py"
ACTIVATE, LEASE, CHECKS = (f"model_store/redis/{name}.lua" for name in ("activate", "lease", "checks"))
PUBLISH = "model_store/redis/publish.lua"
MUTATIONS = (
    # the join
    Mutation(
        "join: a click at the window's end is late",
        KERNEL,
        "time > entry.time + rules.window",
        "time >= entry.time + rules.window",
        JOIN,
    ),
    Mutation(
        "join: windows close a moment early",
        KERNEL,
        "memory.due[0].time < through:",
        "memory.due[0].time <= through:",
        JOIN,
    ),
    Mutation(
        "join: late feedback is counted twice",
        KERNEL,
        "flags & flag or (is_late and flags & (flag << LATE))",
        "flags & flag",
        JOIN,
    ),
    Mutation(
        "join: pending rows are corrected",
        KERNEL,
        "elif rules.correct and entry.state == CLOSED:",
        "elif rules.correct:",
        JOIN,
    ),
    Mutation(
        "join: early feedback is not counted in its entry",
        KERNEL,
        "    entry.rows += 1\n    push(memory.early_due",
        "    push(memory.early_due",
        JOIN,
    ),
    Mutation(
        "join: closed requests are forgotten at once",
        KERNEL,
        "head.watermark + rules.late_within",
        "head.watermark",
        JOIN,
    ),
    Mutation(
        "join: a forgotten request goes on waiting for its impression",
        "trainer/events/join.py",
        '        entries["state"][waiting] = FREE\n',
        "",
        JOIN,
    ),
    Mutation(
        "join: equal times close in any order",
        KERNEL,
        "or (time == other.time and number < other.place)",
        "",
        JOIN,
    ),
    Mutation(
        "join: an event of the future moves the watermark",
        KERNEL,
        "time = min(events.time_us[index], now)",
        "time = events.time_us[index]",
        JOIN,
    ),
    Mutation(
        "join: one request too few may wait",
        KERNEL,
        "memory.counts[0].pending > rules.max_pending",
        "memory.counts[0].pending >= rules.max_pending",
        JOIN,
    ),
    Mutation(
        "join: a clock that steps back is ignored",
        "trainer/events/join.py",
        'min(head["watermark"], now_us - self._rules.lateness)',
        'head["watermark"]',
        JOIN,
    ),
    # the lease
    Mutation(
        "lease: a replica gives the epoch of a living writer",
        "model_store/keys.py",
        "EPOCH_STEP = 2**20",
        "EPOCH_STEP = 1",
        STORE,
    ),
    Mutation(
        "lease: an epoch is given twice after a restore",
        LEASE,
        "math.max(last_epoch, there.epoch) + tonumber(ARGV[11])",
        "last_epoch + tonumber(ARGV[11])",
        STORE,
    ),
    Mutation(
        "lease: renewed while another has it",
        LEASE,
        "there.epoch > epoch or (there.epoch ~= epoch and others)",
        "there.epoch ~= epoch and others",
        STORE,
    ),
    Mutation(
        "lease: another's rows are inherited",
        LEASE,
        "same and string.format('%.0f', there.rows) or '0'",
        "string.format('%.0f', there.rows)",
        STORE,
    ),
    Mutation(
        "lease: released, it still lasts a term",
        LEASE,
        "verb == 'release' and now or now + tonumber(ARGV[4])",
        "now + tonumber(ARGV[4])",
        STORE,
    ),
    Mutation(
        "lease: lasts longer after the clock was set back",
        CHECKS,
        "if lease.seen_ms > now then",
        "if false then",
        STORE,
    ),
    Mutation(
        "lease: not asked for before what no fence holds back",
        "trainer/runs/trainer.py",
        "        self.check()\n        self._renew()",
        "        self.check()",
        ("tests/integration/test_clock_jumps.py", *STORE),
    ),
    # activate and publish
    Mutation(
        "activate: a pin does not hold the trainer",
        ACTIVATE,
        "is_trainer and lease.pinned > 0",
        "is_trainer and lease.pinned < 0",
        STORE,
    ),
    Mutation(
        "activate: a trainer is never stale",
        ACTIVATE,
        "is_trainer and last_epoch <= lease.resumed",
        "is_trainer",
        STORE,
    ),
    Mutation(
        "activate: the epoch before is no fence",
        ACTIVATE,
        "if epoch < last_epoch and",
        "if epoch + 1 < last_epoch and",
        STORE,
    ),
    Mutation("activate: the lease is no fence", ACTIVATE, "if epoch < fence then", "if false then", STORE),
    Mutation("activate: the epoch is lowered", ACTIVATE, "math.max(epoch, last_epoch)", "epoch", STORE),
    Mutation(
        "activate: a rollback leaves its target in the history",
        ACTIVATE,
        "redis.call('LTRIM', KEYS[3], i, -1)",
        "redis.call('LTRIM', KEYS[3], i - 1, -1)",
        STORE,
    ),
    Mutation(
        "activate: a chunk may be too long",
        ACTIVATE,
        "if there ~= expected then",
        "if there < expected then",
        STORE,
    ),
    Mutation("publish: chunks expire", PUBLISH, "redis.call('PERSIST', KEYS[4 + i])", "", STORE),
    Mutation(
        "publish: the lease is no fence",
        PUBLISH,
        "elseif epoch < lease.epoch then",
        "elseif false then",
        STORE,
    ),
    # deltas
    Mutation(
        "delta: removed keys stay",
        "model_store/artefact/artefact.py",
        "merged_rows(self, delta, delta.variants != 0)",
        "merged_rows(self, delta, np.ones(delta.rows, np.bool_))",
        DELTA,
    ),
    Mutation(
        "delta: joined deltas lose what the first removes",
        "model_store/artefact/artefact.py",
        "np.ones(later.rows, np.bool_)",
        "later.variants != 0",
        DELTA,
    ),
    Mutation(
        "delta: the content is the publisher's own",
        "model_store/artefact/artefact.py",
        "content=str(Content.parse(parent.content) + changed.content_change())",
        "content=self.content",
        DELTA,
    ),
    Mutation(
        "delta: a chain may skip the served version",
        "model_store/versions/model_versions.py",
        "return chain[::-1] if parent == served else None",
        "return chain[::-1]",
        (*STORE, *DELTA),
    ),
    # the last good model
    Mutation(
        "last good: swept before the index names the new",
        "server/sync/last_good.py",
        "        write_checked(self._folder / INDEX, document)",
        """        self._sweep(set(filter(None, document["blocks"].values())))
        write_checked(self._folder / INDEX, document)""",
        LAST_GOOD,
    ),
    Mutation(
        "last good: a lost file is not written again",
        "server/sync/last_good.py",
        "file is None or not (self._folder / file).exists()",
        "file is None",
        LAST_GOOD,
    ),
    Mutation(
        "last good: another model's copy is taken",
        "server/sync/last_good.py",
        'sha256 not in (None, kept["sha256"])',
        "False",
        LAST_GOOD,
    ),
    Mutation(
        "last good: the checksum is not looked at",
        "server/sync/state_folder.py",
        "    if not is_whole:",
        "    if False:",
        LAST_GOOD,
    ),
    # the gates: the guard before activation, the server's before a call
    Mutation(
        "guard: judges too few examples",
        "trainer/publish/guard.py",
        "candidate.examples >= bounds.min_examples",
        "candidate.examples > 0",
        GUARD,
    ),
    Mutation(
        "guard: chance counts as a fault",
        "trainer/publish/guard.py",
        "predicted / high - clicks > BEYOND_CHANCE * (variance / high) ** 0.5",
        "predicted / high - clicks > 0",
        GUARD,
    ),
    Mutation(
        "guard: no cooldown after a rollback",
        "trainer/publish/guard.py",
        "if left_s <= 0.0:",
        "if left_s <= 1e9:",
        GUARD,
    ),
    Mutation(
        "gate: a call too many has a place",
        "server/serve/gate.py",
        "len(self._begun) >= self.places",
        "len(self._begun) > self.places",
        GATE,
    ),
    # resuming
    Mutation(
        "resume: one checkpoint fewer is kept",
        "trainer/checkpoint/folder.py",
        "self.keep(KEPT)",
        "self.keep(KEPT - 1)",
        RESUME,
    ),
    Mutation(
        "resume: a file is renamed before it is whole on disk",
        "model_store/files.py",
        "            os.fsync(file.fileno())\n        temporary",
        "        temporary",
        RESUME,
    ),
    Mutation(
        "resume: waiting rows are not written before the checkpoint",
        "trainer/runs/stream.py",
        "            segments.flush()",
        "            pass",
        RESUME,
    ),
    Mutation(
        "resume: online metrics begin again",
        "trainer/runs/stream.py",
        "        self.online.restore(part_of(arrays, ONLINE_PART))\n",
        "",
        RESUME,
    ),
    Mutation(
        "resume: what windows gave since is not published",
        "trainer/publish/publisher.py",
        "0 < through_us < self._through_us",
        "0 < through_us <= self._through_us",
        ("tests/trainer/runs/test_publish_pacing.py",),
    ),
    Mutation(
        "resume: reading continues one event early",
        "trainer/sources/merge.py",
        "**source.position(parsed.chunk, count)",
        "**source.position(parsed.chunk, count - 1)",
        ("tests/trainer/events", *RESUME),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """found_by: the first test that failed. why_not: "" if there is one, else "SURVIVED", or why nothing is known."""

    name: str
    found_by: str
    why_not: str
    seconds: float


class Undecided(Exception):
    """The tests came to no end, or did not run: that says nothing of the fault."""


def copied(folder: Path) -> Path:
    """The files that git tracks, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def tried(mutation: Mutation, folder: Path) -> Outcome:
    """Put the fault into the copy, run its tests until one fails, take it out again, and run that test without it."""
    path, began = folder / mutation.file, time.monotonic()
    whole = path.read_text("utf-8")
    found = why_not = ""
    try:
        path.write_text(whole.replace(mutation.before, mutation.after), "utf-8")
        try:
            found = _failing(folder, "not slow", mutation.tests)
            # The slow ones of machines and sweeps only where the fast tests find nothing.
            thorough = [
                test for test in mutation.tests if test.startswith(("tests/machines", "tests/sweeps"))
            ]
            if not found and thorough:
                found = _failing(folder, "slow", thorough)
        finally:
            path.write_text(whole, "utf-8")
        if not found:
            why_not = "SURVIVED"
        elif _failing(folder, "", [found]):
            found, why_not = "", f"UNDECIDED: {found} fails without the fault too"
    except Undecided as undecided:
        why_not = f"UNDECIDED: {undecided}"
    return Outcome(mutation.name, found, why_not, round(time.monotonic() - began, 1))


def _failing(folder: Path, marked: str, tests: Sequence[str]) -> str:
    """The first of the tests with this mark that fails; "" if none does. Raises Undecided."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", marked, *tests]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{folder / 'proto'}", "FTRIE_MUTATED": "1"}
    how: dict[str, Any] = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    try:
        run = subprocess.run(command, timeout=MOST_S, check=False, **how)
    except subprocess.TimeoutExpired:
        raise Undecided(f"no end in {MOST_S:.0f} s") from None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", run.stdout, re.MULTILINE)
    if not failed and run.returncode not in (0, 5):  # 5: none of them has this mark
        raise Undecided(f"exit code {run.returncode}: {(run.stderr or run.stdout)[-300:].strip()}")
    return failed[1] if failed else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Put small faults into a copy of the product: each must be found."
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (1)")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON at the end")
    options = parser.parse_args()
    for mutation in MUTATIONS:
        if (times := (ROOT / mutation.file).read_text("utf-8").count(mutation.before)) != 1:
            parser.error(f"{mutation.name}: its text occurs {times} times in {mutation.file}, expected once")
    chosen = [mutation for mutation in MUTATIONS if options.only in mutation.name]
    with tempfile.TemporaryDirectory(prefix="ftrie-mutations-") as parent:
        copies = SimpleQueue[Path]()
        for number in range(options.jobs):
            copies.put(copied(Path(parent) / str(number)))

        def attempt(mutation: Mutation) -> Outcome:
            folder = copies.get()
            outcome = tried(mutation, folder)
            copies.put(folder)
            result = f"found by {outcome.found_by}" if outcome.found_by else outcome.why_not
            print(f"{outcome.name}: {result} ({outcome.seconds:.0f} s)", file=sys.stderr, flush=True)
            return outcome

        with ThreadPoolExecutor(options.jobs) as jobs:
            outcomes = list(jobs.map(attempt, chosen))
    found = sum(bool(outcome.found_by) for outcome in outcomes)
    print(f"{len(outcomes)} faults, {found} found", file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    return 0 if outcomes and found == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
