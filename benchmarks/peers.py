"""ftrie beside what else could rank: the same weights, the same 200 candidates, the same requests, the same core.

    python -m benchmarks.peers

Every server has one core, and so has each scorer that is called in process; the load has the other. All hold the model
of `rivals.shared_model`, and each answers some requests in full first: the run ends unless every click-through rate is
the sum of the model's weights to 1e-5. What is not installed is left out: `pip install -e ".[bench,peers]"`.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import rank_model as shop
from benchmarks.common import ROUNDS, Spread, alternate, ratio, report
from benchmarks.processes import SERVER_CORE, process, served
from benchmarks.rank_requests import TOP_K, call, fill, loaded, request
from benchmarks.rivals import asking, shared_model, vowpal_wabbit, vw_daemon
from benchmarks.rivals.asking import Bodies, Rates
from ctr.v1.ranking_pb2 import RankRequest
from model_store.artefact.artefact import Artefact
from model_store.store import Store

CANDIDATES, REQUESTS, COMPARED = 200, 2000, 3
NEEDS = ("vowpalwabbit",)
TOLERANCE = 1e-5
HTTP_CONNECTIONS = 32
FIRST_CALLS, RUN_S = 40, 2.0
FTRIE, RANKER = "ftrie", "ftrie's ranker"
COLUMNS = ("what", "asked over", "rankings/s", "low", "high", "ftrie is faster by", "ctr differs by")


@dataclass(frozen=True)
class Peer:
    """One row: its name, what it is measured against, how fast it makes so many rankings, and its full answer."""

    name: str
    protocol: str
    against: str
    run: Callable[[int], float]
    answer: Callable[[RankRequest], Rates] | None


class Field:
    """Starts the peers, and knows how each is asked. Everything ends with the stack."""

    def __init__(self, stack: ExitStack, folder: Path, bodies: Bodies) -> None:
        self._stack = stack
        self._bodies = bodies
        self._model = folder / "model.arrow"

    def grpc(self, name: str, address: str, *, empty: bool = False) -> Peer:
        """A gRPC server that runs."""
        answer = None if empty else (lambda asked: asking.ask_grpc(address, asked))
        return Peer(
            name,
            "gRPC",
            FTRIE,
            lambda calls: call(address, self._bodies.grpc, calls).calls_per_second,
            answer,
        )

    def scorer(self, name: str, scorer: str) -> Peer:
        """A scorer behind a plain grpc server."""
        return self.grpc(name, self._started("benchmarks.rivals.grpc_server", scorer))

    def bare(self, name: str, scorer: str) -> Peer:
        """A scorer in a process that does nothing else."""
        words = ("benchmarks.rivals.bare", scorer, str(self._model), str(self._bodies.grpc))
        answer = None if scorer == "ftrie" else (lambda asked: asking.ask_scorer(scorer, self._model, asked))
        return Peer(
            name,
            "function call",
            RANKER,
            lambda calls: loaded(*words, str(calls), core=SERVER_CORE).calls_per_second,
            answer,
        )

    def litserve(self, name: str) -> Peer:
        """LitServe, over HTTP."""
        address = self._started("benchmarks.rivals.litserve_server")
        words = ("benchmarks.rivals.plain_load", "http", address, str(self._bodies.http))
        return Peer(
            name,
            "HTTP, JSON",
            FTRIE,
            lambda calls: loaded(*words, str(calls), str(HTTP_CONNECTIONS)).calls_per_second,
            lambda asked: asking.ask_http(address, asked),
        )

    def daemon(self, name: str) -> Peer:
        """Vowpal Wabbit's daemon, over its own protocol."""
        address = self._started("benchmarks.rivals.vw_daemon")
        words = ("benchmarks.rivals.plain_load", "vw", address, str(self._bodies.vw))
        return Peer(
            name,
            "TCP, text",
            FTRIE,
            lambda calls: loaded(*words, str(calls), str(vw_daemon.CHILDREN)).calls_per_second,
            lambda asked: asking.ask_vw(address, asked),
        )

    def _started(self, module: str, *arguments: str) -> str:
        return self._stack.enter_context(process(module, *arguments, str(self._model))).address


def field(peers: Field, ftrie: str, empty: str) -> list[Peer]:
    """All that is installed, ftrie first."""
    found = [
        peers.grpc(FTRIE, ftrie),
        peers.scorer("Vowpal Wabbit in a handler", "vowpal_wabbit"),
        peers.scorer("a loop by hand in a handler", "by_hand"),
    ]
    if _installed("sklearn"):
        found.append(peers.scorer("scikit-learn in a handler", "scikit_learn"))
    if _installed("river"):
        found.append(peers.scorer("River in a handler", "river"))
    if _installed("litserve"):
        found.append(peers.litserve("LitServe, the loop by hand"))
    return [
        *found,
        peers.daemon("Vowpal Wabbit's daemon"),
        peers.grpc("an empty handler", empty, empty=True),
        peers.bare(RANKER, "ftrie"),
        peers.bare("Vowpal Wabbit in process", "vowpal_wabbit"),
        peers.bare("a loop by hand", "by_hand"),
    ]


def differences(peers: list[Peer], requests: list[RankRequest], model: Path) -> dict[str, float]:
    """How far each peer's click-through rates are off, at most. Raises RuntimeError where that is too far."""
    weights = shared_model.weights(model)
    found: dict[str, float] = {}
    for peer in peers:
        for asked in requests if peer.answer else []:
            assert peer.answer is not None
            right, got = asking.expected(asked, weights), peer.answer(asked)
            if got.keys() != right.keys():
                raise RuntimeError(f"{peer.name} ranked {len(got)} of {len(right)} candidates")
            off = max(abs(got[item] - right[item]) for item in right)
            found[peer.name] = max(found.get(peer.name, 0.0), off)
        if found.get(peer.name, 0.0) > TOLERANCE:
            raise RuntimeError(
                f"{peer.name} is off by {found[peer.name]:.2g}: it does not hold the same model"
            )
    return found


def measure(peers: list[Peer]) -> dict[str, list[float]]:
    """Rankings a second of each in every round; each makes as many calls as take about RUN_S."""

    def runner(peer: Peer) -> Callable[[], float]:
        speed = peer.run(FIRST_CALLS)
        calls = max(FIRST_CALLS, int(peer.run(max(FIRST_CALLS, int(speed * RUN_S / 4))) * RUN_S))
        return lambda: peer.run(calls)

    return alternate({peer.name: runner(peer) for peer in peers})


def rows(peers: list[Peer], measures: dict[str, list[float]], off: dict[str, float]) -> list[list[object]]:
    """The table."""
    table = []
    for peer in peers:
        speed = Spread.of(measures[peer.name])
        times = ratio(measures, peer.against, peer.name).median
        table.append(
            [
                peer.name,
                peer.protocol,
                *(round(value) for value in (speed.median, speed.low, speed.high)),
                "—" if peer.name == peer.against else f"{times:.2f} ×",
                f"{off[peer.name]:.1g}" if peer.name in off else "—",
            ]
        )
    return table


def _installed(module: str) -> bool:
    there = importlib.util.find_spec(module) is not None
    if not there:
        print(f"{module} is left out, it is not installed: pip install 'ftrie[peers]'")
    return there


def prepare(store: Store, model: Path) -> Artefact:
    """Write and publish the shared model; returns it."""
    artefact = shared_model.write(model)
    vowpal_wabbit.export(artefact, model.with_suffix(".vw"))
    fill(store, artefact=artefact)
    return artefact


def main() -> None:
    requests = [request(number, CANDIDATES, inline=True) for number in range(REQUESTS)]
    with tempfile.TemporaryDirectory(prefix="ftrie-") as name, ExitStack() as stack:
        folder = Path(name)
        url = f"embedded:{folder}/store"
        store = stack.enter_context(Store.open(url))
        artefact = prepare(store, folder / "model.arrow")
        bodies = Bodies.write(folder, requests)
        empty = stack.enter_context(process("benchmarks.empty_server")).address
        ftrie = stack.enter_context(served(shop.NAME, "--store", url)).address
        peers = field(Field(stack, folder, bodies), ftrie, empty)
        off = differences(peers, requests[:COMPARED], folder / "model.arrow")
        measures = measure(peers)
        title = (
            f"{CANDIDATES} candidates, top {TOP_K}, rankings/s on one core; {artefact.rows:,} keys, "
            f"{shop.ITEMS:,} items, 8 + 6 fields, {len(shop.CROSSES)} crosses; medians of {ROUNDS} alternating rounds"
        )
        report("peers", title, COLUMNS, rows(peers, measures, off))


if __name__ == "__main__":
    main()
