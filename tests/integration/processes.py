"""`ftrie` as a user runs it, its servers in processes of their own, and what any published model must answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.spec.values import Value
from model_store.store import Store

ROOT = Path(__file__).resolve().parents[2]
FTRIE = [sys.executable, "-m", "ftrie"]


def ftrie(*arguments: str | Path) -> str:
    """Run one command to its end and return what it printed; in this process, which has imported what it needs."""
    out, err = StringIO(), StringIO()
    with chdir(ROOT), redirect_stdout(out), redirect_stderr(err):
        code = run([*map(str, arguments)])
    assert code == 0, err.getvalue()
    return out.getvalue()


@contextmanager
def serving(model: str, store_url: str, *flags: str) -> Iterator[str]:
    """A running `ftrie serve`; yields its address once it is ready, and sees it end well."""
    command = [*FTRIE, "serve", model, "--store", store_url, "--port", "0", "--json", *flags]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            assert process.wait(30) == 0


class Oracle:
    """One published version as a dict of keys: what a server of it must answer, from the definition alone."""

    def __init__(self, artefact: Artefact) -> None:
        self.plan = FeaturePlan.of(artefact.spec)
        keys = map(artefact.key, range(artefact.rows))
        variants = range(len(artefact.spec.variants))
        values = zip(*(artefact.weights_of(bit).tolist() for bit in variants), strict=True)
        self._weights = dict(zip(keys, values, strict=True))

    @classmethod
    def of(cls, store: Store, model: str, version: int) -> Oracle:
        return cls(store.model(model).materialise(version))

    def score(self, example: Mapping[str, Value], variant: str) -> float:
        """The sum of the weights of the example's keys that the variant uses."""
        bit = self.plan.variants.index(variant)
        found = (
            (self._weights[key][bit], x) for key, x, _ in self.plan.keys(example) if key in self._weights
        )
        return sum(weight * x for weight, x in found)
