"""Scoring without any server: a rival, or ftrie's ranker, called in process with plain values.

    python -m benchmarks.rivals.bare SCORER MODEL BODIES CALLS

BODIES is a file of benchmarks.load's. Prints JSON as that does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.load import split
from benchmarks.rank_requests import texts
from benchmarks.rivals import shared_model
from benchmarks.rivals.scorers import SCORERS, best
from ctr.v1.ranking_pb2 import RankRequest

Rank = Callable[[dict[str, str], list[str], int], Any]


def ftrie(path: Path) -> Rank:
    """The server's ranker, one call from features and ids to the best ids."""
    from model_store.artefact.artefact import Artefact
    from server.model.columns import Catalogue
    from server.model.model import Model
    from server.ranking.ranker import Ranker
    from server.ranking.warmup import run_kernels

    run_kernels()
    model = Model.build(Artefact.read(path), 1)
    ranker = Ranker(model, Catalogue.build(model.plan, list(shared_model.items().items())))
    return lambda request, candidates, top_k: ranker.rank(ranker.query(request, candidates, (), 0, top_k))


def rival(name: str, path: Path) -> Rank:
    """A scorer, and the best of what it scored."""
    scorer = SCORERS[name](path)
    return lambda request, candidates, top_k: best(candidates, scorer.ctr(request, candidates), top_k)


def main(name: str, path: Path, bodies: Path, calls: int) -> None:
    """Rank every request in turn, values and ids decoded beforehand."""
    rank = ftrie(path) if name == "ftrie" else rival(name, path)
    messages = [RankRequest.FromString(body[5:]) for body in split(bodies.read_bytes())]
    asked = [(texts(m.user) | texts(m.context), list(m.item_ids), m.top_k) for m in messages]
    for question in asked[:20]:
        rank(*question)
    began, began_cpu = time.perf_counter(), time.process_time()
    for question in islice(cycle(asked), calls):
        rank(*question)
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    print(json.dumps({"seconds": seconds, "calls": calls, "failed": 0, "cpu": cpu}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
