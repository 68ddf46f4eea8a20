"""Train a wide model in PyTorch on ftrie's own keys, and publish it: ftrie then serves the same scores.

    python examples/torch_wide.py clicks.csv.gz --spec examples/avazu.toml

The log is read once by ftrie's trainer, which makes the keys and learns a model to compare with. The wide model is an
`nn.EmbeddingBag` with one weight for each key, the bias among them, trained by `ftrie.torch.FTRLProximal` with the
alpha, beta, l1 and l2 of the spec. It is published under the name in the spec and made active; at last every row of the
log is scored by the published model, and compared with what PyTorch computes. With --batch 1 the model is that of
`ftrie train`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ftrie.terminal import print_table
from model_store.artefact.artefact import Artefact
from model_store.errors import FtrieError, InputError, SpecError
from model_store.flags import DEFAULT_STORE
from model_store.hash_kernels import hash_keys
from model_store.spec.learner_section import LearnerSection
from model_store.spec.sections import CalibrationSection
from model_store.spec.spec import ModelSpec, load_spec
from model_store.store import Store
from trainer.examples.hashing import Examples
from trainer.examples.open_log import Log, open_log
from trainer.learn.model import LearningModel
from trainer.learn.scorer import Scorer

TOLERANCE = 1e-4
"""How far a score may be off: PyTorch adds float32 numbers, ftrie float64."""
SHOWN = 5


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", nargs="+", help="click logs, as `ftrie train` takes them")
    parser.add_argument("--spec", type=Path, default=Path(__file__).with_name("avazu.toml"))
    parser.add_argument(
        "--variant", metavar="NAME", help="the variant to train and publish; default: the first"
    )
    parser.add_argument("--store", metavar="URL", default=DEFAULT_STORE)
    parser.add_argument("--batch", type=int, default=16, metavar="ROWS", help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="default: %(default)s")
    options = parser.parse_args(arguments)
    if min(options.batch, options.epochs) < 1:
        parser.error("--batch and --epochs must be 1 or more")
    try:
        importlib.import_module("ftrie.torch")  # or say how to install it, before reading anything
        run(options)
    except (FtrieError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, FtrieError) else 1
    return 0


def run(options: argparse.Namespace) -> None:
    """Read, train, publish and compare."""
    spec = spec_of_one_variant(load_spec(options.spec), options.variant)
    model, batches = read(spec, options.log)
    rows = Rows.of(model, batches)
    weights, rates, loss = train(rows, spec, options.batch, options.epochs)
    artefact = artefact_of(model, weights, rates, loss)
    with Store.open(options.store) as store:
        versions = store.model(spec.model.name)
        version = versions.publish_and_activate(artefact)
        served = versions.materialise(version)
    theirs = next(iter(model.metrics.summary().values())).logloss
    print(f"{len(rows):,} rows, {weights.size:,} keys, {artefact.rows:,} with a weight")
    print(f"log-loss, each row before it is learned: {loss:.5f}; of ftrie train: {theirs:.5f}")
    print(f"{spec.model.name} version {version} is active")
    scorer = Scorer(served)
    scores = [scorer.score(model.maker, examples).score[:, 0] for examples in batches]
    compare(rows.scores(weights), np.concatenate(scores))


def spec_of_one_variant(spec: ModelSpec, name: str | None) -> ModelSpec:
    """The spec with this variant alone, and only what FTRLProximal has too: alpha, beta, l1, l2."""
    name = name if name is not None else next(iter(spec.variants))
    if name not in spec.variants:
        raise SpecError(f"--variant: no variant {name!r}; the spec has: {', '.join(spec.variants)}")
    own, learner = spec.variants[name], spec.learner
    if learner.algorithm != "ftrl":
        raise SpecError(f'the spec has algorithm = "{learner.algorithm}"; FTRLProximal needs "ftrl"')
    parameters = {each: getattr(learner, each) for each in ("alpha", "beta", "l1", "l2")}
    return spec.model_copy(
        update={
            "variants": {name: own.model_copy(update={"share": 1.0} | dict.fromkeys(parameters))},
            "learner": LearnerSection(**parameters | own.own_parameters),
            "rules": {},
            "calibration": CalibrationSection(),
        }
    )


def read(spec: ModelSpec, inputs: list[str]) -> tuple[LearningModel, list[Examples]]:
    """The log as hashed examples, and what the trainer learns of them: its table holds the bytes of all keys."""
    with open_log(Log(inputs), spec) as log, log.examples() as stream:
        model, batches = LearningModel(log.maker), []
        for examples in stream:
            model.learn(examples)
            batches.append(examples)
    if not model.rows:
        raise InputError(f"no row to learn from in {', '.join(inputs)}")
    return model, batches


@dataclass(frozen=True)
class Rows:
    """All rows: those of number i have the keys `ids[starts[i]:starts[i + 1]]`, with factors x."""

    ids: Any
    x: Any
    starts: Any
    labels: Any
    weights: Any

    @classmethod
    def of(cls, model: LearningModel, batches: list[Examples]) -> Rows:
        """Number the keys as the model's table does."""
        import torch

        keys = model.table.keys()
        known = np.empty(keys.slots.size, np.uint64)
        hash_keys(keys.data, keys.offsets, known)
        order = np.argsort(known)
        parts = [each.hashed for each in batches]
        hashes = np.concatenate([part.hashes[: part.starts[-1]] for part in parts])
        sizes = np.concatenate([np.diff(part.starts) for part in parts])
        x = [part.x[: part.starts[-1]] if part.x.size else np.ones(part.starts[-1]) for part in parts]
        weights = [part.weights if part.weights.size else np.ones(part.labels.size) for part in parts]
        return cls(
            ids=torch.from_numpy(order[np.searchsorted(known[order], hashes)]),
            x=torch.from_numpy(np.concatenate(x)).float(),
            starts=torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)])),
            labels=torch.from_numpy(np.concatenate([part.labels for part in parts])).float(),
            weights=torch.from_numpy(np.concatenate(weights)).float(),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def bags(self, rows: slice) -> tuple[Any, Any, Any]:
        """The keys of some rows, where those of each row start, and their x: what an EmbeddingBag takes."""
        starts = self.starts[rows]
        keys = slice(int(starts[0]), int(self.starts[min(rows.stop, len(self))]))
        return self.ids[keys], starts - starts[0], self.x[keys]

    def batches(self, size: int) -> Iterator[slice]:
        """All rows in order, `size` at a time."""
        return (slice(first, min(first + size, len(self))) for first in range(0, len(self), size))

    def scores(self, weights: Any) -> Any:
        """PyTorch's score of every row: float32[rows]."""
        import torch

        table = torch.from_numpy(weights)[:, None]
        ids, offsets, x = self.bags(slice(0, len(self)))
        bag = torch.nn.functional.embedding_bag(ids, table, offsets, mode="sum", per_sample_weights=x)
        return bag[:, 0].numpy()


def train(rows: Rows, spec: ModelSpec, batch: int, epochs: int) -> tuple[Any, Any, float]:
    """Each key's weight and learning rate, and the mean loss of the rows before any was learned twice."""
    import torch

    from ftrie.torch import FTRLProximal

    learner = spec.learner
    bag = torch.nn.EmbeddingBag(int(rows.ids.max()) + 1, 1, mode="sum", sparse=True)
    torch.nn.init.zeros_(bag.weight)
    optimizer = FTRLProximal(
        bag.parameters(), alpha=learner.alpha, beta=learner.beta, l1=learner.l1, l2=learner.l2
    )
    total = 0.0
    for epoch in range(epochs):
        for some in rows.batches(batch):
            optimizer.zero_grad()
            ids, offsets, x = rows.bags(some)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                bag(ids, offsets, x)[:, 0], rows.labels[some], rows.weights[some], reduction="sum"
            )
            loss.backward()
            optimizer.step()
            total += loss.item() if epoch == 0 else 0.0
    n = optimizer.state[bag.weight]["n"][:, 0]
    rates = learner.alpha / (learner.beta + n.sqrt())
    return bag.weight.detach()[:, 0].numpy(), rates.numpy(), total / float(rows.weights.sum())


def artefact_of(model: LearningModel, weights: Any, rates: Any, loss: float) -> Artefact:
    """The model as ftrie publishes it: every key that has a weight, as bytes."""
    keys, kept = model.table.keys(), weights != 0.0
    lengths = np.diff(keys.offsets)
    return Artefact.from_columns(
        key_data=keys.data[np.repeat(kept, lengths)],
        key_offsets=np.concatenate([[0], np.cumsum(lengths[kept])]),
        weight=weights[kept],
        variants=model.coordinates.masks_of(keys)[kept],
        rate=rates[kept],
        spec=model.spec,
        metrics={name: {"logloss": loss} for name in model.spec.variants},
    )


def compare(torch_scores: Any, served_scores: Any) -> None:
    """Print some scores beside each other. Raises FtrieError where any two differ."""
    pairs = list(zip(torch_scores.tolist(), served_scores.tolist(), strict=True))
    print_table(["row", "PyTorch", "served"], [[i + 1, *pair] for i, pair in enumerate(pairs[:SHOWN])])
    off = float(np.abs(torch_scores - served_scores).max())
    print(f"the largest difference of all {len(pairs):,} rows: {off:.2g}")
    if not off <= TOLERANCE:
        raise FtrieError(f"the published model scores a row off by {off:.3g}; expected at most {TOLERANCE}")


if __name__ == "__main__":
    sys.exit(main())
