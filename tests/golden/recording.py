"""What the golden file holds: `python -m tests.golden.recording` writes it again, after a change that is meant.

Everything goes through the command line and the public library, so that it outlives every move of the code behind them.
Times, speeds and paths are left out; all else is compared to the bit, on any machine (docs/adr/0002).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ftrie
from ftrie.cli import run
from tests.golden import world
from tests.integration.processes import serving

HERE = Path(__file__).parent
FILE = HERE / "golden.json"
CHECKPOINTS = HERE / "checkpoints"
ROWS, SHORT = 6000, 1500
FINDINGS = 9
"""The exit code of a doctor with errors to report."""
REQUESTS, BLOCK, SERVED = 10_000, 100, 1000
EVENTS = ("--format", "events")
_OF_THE_RUN = frozenset(
    (
        "seconds",
        "rows_per_second",
        "peak_memory_bytes",
        "learning_seconds",
        "bytes_per_second",
        "time",
        "started",
        "created",
    )
)


def command(*arguments: str) -> str:
    """The stdout of a command, or its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    return out.getvalue() if code in (0, FINDINGS) else f"exit {code}: {err.getvalue()}"


def answer(*arguments: str) -> Any:
    """The JSON of a command without what depends on the machine or the moment."""
    text = command(*arguments, "--json")
    return text if text.startswith("exit") else lasting(json.loads(text))


def lasting(value: Any) -> Any:
    """A value without the members that depend on the machine or the moment."""
    if isinstance(value, Mapping):
        return {name: lasting(each) for name, each in value.items() if name not in _OF_THE_RUN}
    return list(map(lasting, value)) if isinstance(value, list) else value


def digest(data: bytes) -> str:
    """The first 16 digits of its SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def of_file(name: str) -> str:
    """The digest of a model's file, and that of its JSON form, if it has one."""
    model = ftrie.load(name)
    form = "" if "adpredictor" in model.spec.text else digest(model.to_json(model.variants[0]).encode())
    return f"{digest(Path(name).read_bytes())} {form}"


def artefacts() -> dict[str, Any]:
    """Each learner on each format: the model's bytes, the report, and the rejects."""
    found: dict[str, Any] = {}
    kinds = {"csv": "csv", "tsv": "tsv", "jsonl": "jsonl", "parquet": "parquet"}
    for kind in (*kinds, *world.OPEN):
        world.write_log(Path(f"log.{kind}"), kind, ROWS, 7)
    world.write_events(Path("impressions.jsonl"), Path("clicks.jsonl"), ROWS, 7)
    Path("histories.toml").write_text(world.HISTORIES)
    for learner in world.LEARNERS:
        Path(f"{learner}.toml").write_text(world.spec(learner))
        for kind in kinds if learner == "ftrl" else ("csv",):
            found[f"{learner} {kind}"] = _trained(f"{learner}.toml", f"log.{kind}")
    for kind, spec in world.OPEN.items():
        Path(f"{kind}.toml").write_text(spec)
        found[kind] = _trained(f"{kind}.toml", f"log.{kind}", "--format", kind)
    found["events"] = _trained("histories.toml", "impressions.jsonl", "clicks.jsonl", *EVENTS)
    found["passes"] = _trained("ftrl.toml", "log.csv", "--passes", "3", "--cache", "log.cache")
    found["cache"] = _trained("ftrl.toml", "log.csv", "--cache", "log.cache")
    shutil.copy("model.arrow", "kept.arrow")
    found["initial"] = _trained("ftrl.toml", "log.tsv", "--init-from", "kept.arrow")
    return found


def _trained(*arguments: str) -> dict[str, Any]:
    report = answer("train", *arguments, "--save", "model.arrow", "--rejects", "rejects.jsonl")
    rejects = Path("rejects.jsonl").read_text().splitlines()
    return {
        "sha256": of_file("model.arrow"),
        "report": report,
        "rejects": rejects[:12],
        "all rejects": digest("\n".join(rejects).encode()),
    }


def reports() -> dict[str, Any]:
    """What the other commands on logs say."""
    _trained("ftrl.toml", "log.csv")
    shutil.copy("model.arrow", "kept.arrow")
    _trained("histories.toml", "impressions.jsonl", "clicks.jsonl", *EVENTS)
    shutil.copy("model.arrow", "events.arrow")
    world.write_log(Path("later.csv"), "csv", SHORT, 8)
    world.write_events(Path("later-i.jsonl"), Path("later-c.jsonl"), SHORT, 8)
    found = {
        "evaluate": answer("evaluate", "kept.arrow", "later.csv", "--predictions", "predictions.csv"),
        "predictions": digest(Path("predictions.csv").read_bytes()),
        "evaluate report": _digest_of(
            answer("evaluate", "kept.arrow", "later.csv", "--report", "page.html", "--repeats", "2")
        ),
        "evaluate events": answer("evaluate", "events.arrow", "later-i.jsonl", "later-c.jsonl", *EVENTS),
        "doctor": answer("doctor", "log.csv"),
        "doctor spec": answer("doctor", "--spec", "ftrl.toml", "log.csv"),
        "doctor events": answer("doctor", "impressions.jsonl", "clicks.jsonl", *EVENTS),
        "init": _first_spec("log.csv", "--quick"),
        "init measured": _first_spec("log.csv"),
        "init events": _first_spec("impressions.jsonl", "clicks.jsonl", *EVENTS),
        "tune": answer(
            "tune",
            "ftrl_own_q213.toml",
            "log.csv",
            "--try",
            "alpha=0.05,0.2",
            "--try",
            "l1=0,0.1",
            "--widen",
            "0",
        ),
        "tune crosses": answer(
            "tune", "rda.toml", "log.csv", "--try", "alpha=0.1", "--crosses", "--widen", "0"
        ),
        "checkpoint": answer("train", "ftrl.toml", "log.csv", "--checkpoint", "state", "--every", "2000"),
    }
    metrics = answer(
        "train",
        "ftrl.toml",
        "log.csv",
        "--metrics",
        "run.jsonl",
        "--slice",
        "device",
        "--window",
        "1500",
        "--regret",
    )
    found["regret"] = metrics
    found["metrics"] = [lasting(json.loads(line)) for line in Path("run.jsonl").read_text().splitlines()]
    return found


def _digest_of(value: Any) -> str:
    return digest(json.dumps(value, sort_keys=True).encode())


def _first_spec(*arguments: str) -> str:
    printed = command("init", *arguments, "-o", "first.toml", "--force")
    return printed if printed.startswith("exit") else Path("first.toml").read_text()


LABELLED = ("ftrl", "ftrl_bloom_rules", "adpredictor")


def write_checkpoints(folder: Path) -> None:
    """Checkpoints of runs that stop at the end of the first half of a log, for `resumed`."""
    world.write_log(Path("part.csv"), "csv", SHORT, 7)
    for name in LABELLED:
        Path(f"{name}.toml").write_text(world.spec(name))
        command("train", f"{name}.toml", "part.csv", "--checkpoint", str(folder / name))
    world.write_events(Path("part-i.jsonl"), Path("part-c.jsonl"), 2 * SHORT, 7)
    for file in (Path("part-i.jsonl"), Path("part-c.jsonl")):
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[: len(lines) // 2]))
    _joined(folder / "events")


def _joined(checkpoint: Path) -> Any:
    """The last status of a trainer that learns the files of events, from the checkpoint if there is one."""
    Path("histories.toml").write_text(world.HISTORIES)
    flags = (
        "--checkpoint",
        str(checkpoint),
        "--store",
        f"embedded:{Path('store').absolute()}",
        "--save",
        "model.arrow",
    )
    printed = command(
        "trainer",
        "histories.toml",
        "part-i.jsonl",
        "part-c.jsonl",
        *flags,
        "--no-publish",
        "--once",
        "--json",
    )
    if printed.startswith("exit"):
        return printed
    status = json.loads(printed.splitlines()[-1])
    return {name: status[name] for name in ("counts", "join", "variants", "dead_letters", "warnings")}


def pack(made: Path, kept: Path) -> None:
    """Keep the last checkpoint of each run, compressed."""
    kept.mkdir()
    for run_ in made.iterdir():
        file = max(run_.glob("*.checkpoint"))
        (kept / f"{file.parent.name}.{file.name}.xz").write_bytes(lzma.compress(file.read_bytes()))


def _unpacked(kept: Path, name: str) -> Path:
    (file,) = kept.glob(f"{name}.0*.xz")
    folder = Path("resumed") / name
    folder.mkdir(parents=True)
    (folder / file.name.removeprefix(f"{name}.").removesuffix(".xz")).write_bytes(
        lzma.decompress(file.read_bytes())
    )
    return folder


def resumed(kept: Path) -> dict[str, Any]:
    """Runs resumed from the recorded checkpoints, on the log that has grown since."""
    world.write_log(Path("part.csv"), "csv", SHORT, 7)
    with Path("part.csv").open("a", encoding="utf-8") as log:
        log.writelines(world.csv_line(list(row.values()), ",") for row in world.rows(SHORT, 9))
    world.write_events(Path("part-i.jsonl"), Path("part-c.jsonl"), 2 * SHORT, 7)
    found: dict[str, Any] = {}
    for name in LABELLED:
        Path(f"{name}.toml").write_text(world.spec(name))
        flags = ("--checkpoint", str(_unpacked(kept, name)), "--resume", "--save", "model.arrow")
        report = answer("train", f"{name}.toml", "part.csv", *flags)
        found[name] = {"sha256": of_file("model.arrow"), "report": report}
    found["events"] = {"status": _joined(_unpacked(kept, "events")), "sha256": of_file("model.arrow")}
    return found


def answers(rank: Any, count: int) -> dict[str, Any]:
    """Digests of the answers in blocks, and the first of them in full."""
    texts = [_answered(rank, request) for request in world.requests(count, 3)]
    blocks = [digest("\n".join(texts[n : n + BLOCK]).encode()) for n in range(0, count, BLOCK)]
    refused = [text for text in dict.fromkeys(texts) if text.startswith("refused")]
    return {"first": texts[:3], "refused": refused, "blocks": blocks}


def _answered(rank: Any, request: dict[str, Any]) -> str:
    try:
        answer = asdict(rank(**request))
        for item in answer["items"]:
            own = item.get("item", item)  # of an explanation
            if own["models"] is None:  # a member that came after the recording
                del own["models"]
        return json.dumps(answer, sort_keys=True, default=repr)
    except (ftrie.FtrieError, TypeError, ValueError) as error:
        text = re.sub(r"127\.0\.0\.1:\d+", "SERVER", str(error))
        return f"refused: {type(error).__name__}: {text}"


def ranked() -> dict[str, Any]:
    """Answers of the ranker in process, for models of shared and own weights, of variances and of histories."""
    found: dict[str, Any] = {}
    for learner, count in (
        ("ftrl", REQUESTS),
        ("ftrl_own_q213", 2000),
        ("adpredictor", 2000),
        ("ftrl_buckets", 1000),
    ):
        _trained(f"{learner}.toml", "log.csv")
        ranker = ftrie.load("model.arrow").ranker(items=world.ITEMS, users=world.USERS)
        found[learner] = answers(ranker.rank, count)
        if learner in ("ftrl", "adpredictor"):
            found[f"{learner} explained"] = answers(ranker.explain, 100)
    return found


def served(folder: Path) -> dict[str, Any]:
    """Answers of a server, of users and items in its store, and the store's keys."""
    url = f"embedded:{folder / 'store'}"
    Path("items.jsonl").write_text(
        "".join(json.dumps({"item": id, **row}) + "\n" for id, row in world.ITEMS.items())
    )
    Path("users.jsonl").write_text(
        "".join(json.dumps({"cookie": id, **row}) + "\n" for id, row in world.USERS.items())
    )
    with ftrie.Store(url):
        trained = answer("train", "ftrl.toml", "log.csv", "--activate", "--store", url)
        command("store", "load", "items", "items.jsonl", "--store", url)
        command("store", "load", "users", "users.jsonl", "--store", url)
        with serving("golden", url) as address, ftrie.Client(address, timeout_s=20) as client:

            def rank(**request: Any) -> Any:
                return client.rank("golden", **request)

            found = answers(rank, SERVED)
        inspected = answer("store", "inspect", "golden", "--store", url)
    return {"trained": trained, "answers": found, "inspected": inspected}


def record(folder: Path, checkpoints: Path) -> dict[str, Any]:
    """All of it, made in an empty folder, resuming the checkpoints of another."""
    with contextlib.chdir(folder):
        return {
            "artefacts": artefacts(),
            "reports": reports(),
            "resumed": resumed(checkpoints),
            "ranked": ranked(),
            "served": served(folder),
        }


def main() -> None:
    """Write the golden file and, where there are none, the checkpoints."""
    with tempfile.TemporaryDirectory() as made:
        if not CHECKPOINTS.exists():
            with contextlib.chdir(Path(made)):
                write_checkpoints(Path("made"))
                pack(Path("made"), CHECKPOINTS)
    with tempfile.TemporaryDirectory() as made:
        recorded = record(Path(made), CHECKPOINTS)
    FILE.write_text(json.dumps(recorded, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
