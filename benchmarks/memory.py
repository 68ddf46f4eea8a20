"""The paper's table 2 on a stream of ours: memory saved, and what it costs in AucLoss; bytes a key at VW's loss.

Memory is what a model needs: its slots, its keys' bytes, its counting filter. What is allocated besides, since a table
grows in steps, is a column of its own. Vowpal Wabbit keeps no keys: it hashes them into 2^b weights, four floats each
with `--ftrl`; it gets as many bits as make its loss equal to ours, with the same parameters on the same rows.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import report
from benchmarks.streams import TailStream, write_vw
from model_store.spec.spec import parse_spec
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.learn.model import LearningModel
from trainer.runs.train import train

ALPHA, BETA, L1 = 0.16, 0.5, 1.0
NEEDS = ("vowpalwabbit",)
EXPECTED_KEYS = 1_000_000
EQUAL_LOSS = 1e-4
VW_BYTES = 16
VW_BITS = (16, 17, 18, 19, 20, 21, 22, 24)

COUNTS = 'rate = "counts"\nbeta = 1.0'  # its own best beta, as 0.5 is that of the others
POISSON = 'inclusion = {{ kind = "poisson", p = {} }}'
BLOOM = f'inclusion = {{{{ kind = "bloom", count = {{}}, keys = {EXPECTED_KEYS} }}}}'
SAVINGS = {
    "every key, 64-bit values (base)": ("", "—"),
    "poisson, p = 0.3": (POISSON.format(0.3), "—"),
    "poisson, p = 0.1": (POISSON.format(0.1), "-40 %, +0.006 %"),
    "poisson, p = 0.03": (POISSON.format(0.03), "-60 %, +0.020 %"),
    "bloom, at the 2nd occurrence": (BLOOM.format(2), "-55 %, +0.003 % (n = 1)"),
    "bloom, at the 3rd": (BLOOM.format(3), "-66 %, +0.008 % (n = 2)"),
    "bloom, at the 5th": (BLOOM.format(5), "—"),
    "counts instead of sums of squares": (COUNTS, "—"),
    "q2.13": ('precision = "q2.13"', "no loss"),
    "q2.13 and counts": (f'precision = "q2.13"\n{COUNTS}', "no loss"),
    "q2.13 and bloom at the 2nd": (f'precision = "q2.13"\n{BLOOM.format(2)}', "—"),
}
VARIANTS = 8
STRUCTURES = {
    f"{VARIANTS} variants, a value each (base)": ('values = "per_variant"', "baseline"),
    f"{VARIANTS} variants, one value for all": ('values = "single"', "—"),
    f"{VARIANTS} variants, a value each, q2.13 and counts": (
        f'values = "per_variant"\nprecision = "q2.13"\n{COUNTS}',
        "—",
    ),
}

OURS = {
    "ftrie, every key": "",
    "ftrie, q2.13": 'precision = "q2.13"',
    "ftrie, bloom at the 2nd": BLOOM.format(2),
    "ftrie, q2.13 and bloom at the 2nd": f'precision = "q2.13"\n{BLOOM.format(2)}',
}

_VW = """
import json, sys, vowpalwabbit

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

vowpalwabbit.Workspace("--quiet -b 10 --ftrl").finish()
before = resident()
workspace = vowpalwabbit.Workspace(sys.argv[1])
after = resident()
workspace.finish()
print(json.dumps({"grown": after - before}))
"""


@dataclass(frozen=True)
class Outcome:
    """Keys in the model, bytes that it needs, bytes allocated, the variants' mean AucLoss, the first one's log-loss."""

    keys: int
    slot_bytes: int
    key_bytes: int
    filter_bytes: int
    allocated: int
    auc_loss: float
    logloss: float

    @property
    def needed(self) -> int:
        return self.slot_bytes + self.key_bytes + self.filter_bytes


def learn(log: Path, learner: str, variants: int = 1) -> Outcome:
    """Train, and weigh the model."""
    names = TailStream(0).names
    several = "\n".join(
        f'v{i} = {{ share = {1 / variants}, without = ["{names[i]}"] }}' for i in range(variants)
    )
    text = '[model]\nname = "bench"\n[input]\nlabel = "click"\n' + (
        f"[variants]\n{several}\n" if variants > 1 else ""
    )
    beta = "" if "beta" in learner else f"beta = {BETA}\n"
    text += f"[learner]\nalpha = {ALPHA}\n{beta}l1 = {L1}\n{learner}\n"
    with RejectLog() as rejects:
        run = train(parse_spec(text), Log([str(log)]), rejects=rejects)
    metrics = list(run.report.variants.values())
    losses = [1.0 - each.auc for each in metrics if each.auc is not None]
    return _weighed(run.model, sum(losses) / len(losses), metrics[0].logloss or 0.0)


def _weighed(model: LearningModel, auc_loss: float, logloss: float) -> Outcome:
    table, admission = model.table, model.coordinates.admission
    a_slot = table.table_bytes // table.slots.size
    return Outcome(
        keys=table.used,
        slot_bytes=table.used * a_slot,
        key_bytes=table.arena_bytes,
        filter_bytes=admission.nbytes,
        allocated=table.nbytes + admission.nbytes,
        auc_loss=auc_loss,
        logloss=logloss,
    )


def savings(log: Path, rows: int) -> Outcome:
    """The table of savings; returns the base."""
    table = []
    for settings, variants in ((SAVINGS, 1), (STRUCTURES, VARIANTS)):
        base: Outcome | None = None
        for title, (learner, paper) in settings.items():
            found = learn(log, learner, variants)
            base = base or found
            table.append(_row(title, found, base, paper))
    columns = ["what", "keys", "MB", "memory", "table B/key", "key B/key", "filter MB", "allocated MB"]
    columns += ["AucLoss", "change", "in the paper"]
    report("memory", f"Memory saved and AucLoss, {rows:,} rows", columns, table)
    return learn(log, "", 1)


def _row(title: str, found: Outcome, base: Outcome, paper: str) -> list[object]:
    return [
        title,
        found.keys,
        f"{found.needed / 1e6:.1f}",
        f"{100 * (found.needed / base.needed - 1):+.0f} %",
        f"{found.slot_bytes / found.keys:.0f}",
        f"{found.key_bytes / found.keys:.1f}",
        f"{found.filter_bytes / 1e6:.1f}",
        f"{found.allocated / 1e6:.1f}",
        round(found.auc_loss, 5),
        f"{100 * (found.auc_loss / base.auc_loss - 1):+.3f} %",
        paper,
    ]


def run_vw(text: Path, bits: int) -> tuple[float, int]:
    """Vowpal Wabbit's progressive log-loss with 2^bits weights, and the bytes that its process grew by."""
    flags = f"-d {text} --ftrl --ftrl_alpha {ALPHA} --ftrl_beta {BETA} --l1 {L1} -b {bits} --loss_function logistic"
    finished = subprocess.run([sys.executable, "-c", _VW, flags], check=True, capture_output=True, text=True)
    loss = re.search(r"average loss = ([\d.]+)", finished.stderr + finished.stdout)
    if loss is None:
        raise RuntimeError(f"Vowpal Wabbit printed no average loss: {finished.stderr}")
    return float(loss.group(1)), int(json.loads(finished.stdout.splitlines()[-1])["grown"])


def against_vw(log: Path, text: Path, rows: int, base: Outcome) -> None:
    """Bytes a key of ours at several settings, and of Vowpal Wabbit at as many bits as its loss needs."""
    keys = base.keys
    table: list[list[object]] = []
    for title, learner in OURS.items():
        found = learn(log, learner)
        a_key = f"{found.needed / keys:.1f}"
        table.append([title, f"{found.needed / 1e6:.1f}", a_key, None, round(found.logloss, 5)])
    for bits in VW_BITS:
        loss, grown = run_vw(text, bits)
        needed = VW_BYTES << bits
        a_key = f"{needed / keys:.1f}"
        table.append(
            [f"Vowpal Wabbit, -b {bits}", f"{needed / 1e6:.1f}", a_key, f"{grown / 1e6:.0f}", round(loss, 5)]
        )
        if loss <= base.logloss + EQUAL_LOSS:
            table[-1][0] = f"{table[-1][0]} (equal loss)"
            break
    columns = ["model", "MB", "bytes a distinct key", "process grew by MB", "progressive log-loss"]
    report("memory_vw", f"Memory at equal loss, {rows:,} rows, {keys:,} distinct keys", columns, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    arguments = parser.parse_args()
    stream = TailStream(arguments.rows)
    with tempfile.TemporaryDirectory() as folder:
        log, text = Path(folder) / "log.tsv", Path(folder) / "log.vw"
        stream.write_tsv(log)
        base = savings(log, stream.rows)
        write_vw(log, text)
        against_vw(log, text, stream.rows, base)


if __name__ == "__main__":
    main()
