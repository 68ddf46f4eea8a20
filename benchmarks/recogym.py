"""RecoGym's users: expected CTR of ftrie on views alone, of RecoGym's agents, of an oracle, and of what can be known.

    python -m benchmarks.recogym

RecoGym (Rohde et al., RecoGym: A Reinforcement Learning Environment for the Problem of Product Recommendation in Online
Advertising, REVEAL at RecSys 2018) simulates users with hidden tastes, who view products, and see one in each slot of
other sites. All agents but the random one learn from the log of 1,000 users who were shown random products, then show
other users one product at each step, in a closed loop: what is shown decides clicks, and these what users do next. The
expected CTR counts, not drawn clicks, and its share of that of the best product at the same steps. Nothing is timed.

ftrie learns the views alone, as docs/decide.md says. `ftrie, from nothing` has no log: it learns the views of the users
it serves, again after each doubling of them, and the first ones see what is left of an empty model. "all that can be
known" is no agent that anyone could have: it has RecoGym's own parameters, and only the tastes of a user are hidden
from it. From views and clicks it computes their distribution by a particle filter (Gordon, Salmond, Smith, IEE
Proceedings F 140(2), 1993), and shows the product of the highest expected CTR. So what it misses of the oracle nobody
can have who sees what happened and not what users think.

RecoGym runs in an environment of its own, with the packages of its time, which the first run makes in .venv/recogym.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import ftrie
from benchmarks.common import report
from model_store.features.history import ITEM, VIEWED, HistoryPlan, UserHistory
from model_store.spec.spec import parse_spec
from server.ranking.derived import user_values

NEEDS = ("python3.8",)
PACKAGES = (
    "numpy==1.19.5",
    "scipy==1.5.4",
    "pandas==1.1.5",
    "numba==0.53.1",
    "scikit-learn==0.24.2",
    "tqdm",
    "six",
)
ITSELF = ("recogym==0.1.3.0", "gym==0.15.7")
"""Without what they require for agents that are not used here: PyTorch, TensorFlow, Jupyter."""
HOME = Path(__file__).resolve().parent.parent / ".venv" / "recogym"
USERS = Path(__file__).parent / "rivals" / "recogym_users.py"
LEARNED, PLAYED = 1_000, 600
"""Users of the log; other users, by whom agents are judged."""
PRODUCTS, PARTICLES = 10, 1_000
START, APART = 1_700_000_000, 10_000
"""When the first user begins, and the seconds until the next one does: each begins at step 0, a step is a second."""
SPEC = """
[model]
name = "recogym"
[input]
label = "click"
timestamp = "ts"
cookie = "cookie"
item = "item"
[fields]
item = { side = "item" }
[fields.viewed]
side = "user"
kind = "set"
history = "viewed"
measure = "counts"
half_life = "50s"
scale = "sqrt"
main = false
[[crosses]]
fields = ["viewed", "item"]
[join]
positive = "view"
[learner]
l1 = 0
"""
Step = dict[str, Any]
View = tuple[int, int]
Rates = list[tuple[float, float]]
"""At each step: the CTR of the product shown, and that of the best one."""


def environment() -> Path:
    """The Python of RecoGym's environment, which is made if there is none."""
    python = HOME / "bin" / "python"
    if not (HOME / "complete").exists():
        shutil.rmtree(HOME, ignore_errors=True)
        subprocess.run([_python38(), "-m", "venv", HOME], check=True)
        install = (python, "-m", "pip", "install", "--quiet")
        subprocess.run([*install, "--only-binary", ":all:", *PACKAGES], check=True)
        subprocess.run([*install, "--no-deps", *ITSELF], check=True)
        (HOME / "complete").touch()
    return python


def _python38() -> str:
    # A shim of pyenv is on the path whatever version is chosen, and then refuses.
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for each in ("python3.8", *sorted(map(str, versions.glob("3.8.*/bin/python")))):
        if (
            shutil.which(each)
            and not subprocess.run([each, "--version"], capture_output=True, check=False).returncode
        ):
            return each
    raise SystemExit("recogym needs Python 3.8, for the packages of its time: pyenv install 3.8")


def told(*words: object) -> Iterator[Any]:
    """What RecoGym's side says."""
    command = [environment(), USERS, *map(str, words)]
    finished = subprocess.run(command, check=False, capture_output=True, text=True)  # it draws bars
    if finished.returncode:
        raise RuntimeError(f"RecoGym's side failed at {' '.join(map(str, words))}: {finished.stderr[-500:]}")
    return map(json.loads, finished.stdout.splitlines())


class Agent(Protocol):
    """Shows products to one user after another."""

    def begin(self, user: int) -> None:
        """A user comes."""

    def see(self, views: Sequence[View]) -> None:
        """The user has viewed products, each at a time."""

    def show(self, step: Step) -> int:
        """The product to show. Only the oracle looks at the step's CTRs."""

    def clicked(self, product: int, click: bool) -> None:
        """What came of the last one."""


def play(agent: Agent, users: int = PLAYED) -> Rates:
    """The agent in a closed loop with the users."""
    found, before, product = Rates(), -1, 0
    command = [environment(), USERS, "serve", str(users), "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        for line in process.stdout:
            step = json.loads(line)
            if step["user"] != before:
                before = step["user"]
                agent.begin(before)
            elif step["click"] is not None:
                agent.clicked(product, bool(step["click"]))
            agent.see(step["views"])
            if step["ctrs"] is not None:
                product = agent.show(step)
                found.append((step["ctrs"][product], max(step["ctrs"])))
                process.stdin.write(f"{product}\n")
                process.stdin.flush()
    if process.returncode:
        raise RuntimeError(f"RecoGym's side ended with exit code {process.returncode}; see above")
    return found


@dataclass
class Simple:
    """Shows what a function of the step says."""

    choose: Callable[[Step], int]

    def begin(self, user: int) -> None: ...
    def see(self, views: Sequence[View]) -> None: ...
    def clicked(self, product: int, click: bool) -> None: ...

    def show(self, step: Step) -> int:
        """The choice."""
        return self.choose(step)


def view_event(user: int, time: int, product: int) -> str:
    """A view as ftrie reads it."""
    event = {
        "event": "view",
        "ts": START + APART * user + time,
        "cookie": f"u{user}",
        "items": [{"id": f"p{product}"}],
    }
    return json.dumps(event) + "\n"


def learned(log: Path) -> ftrie.Ranker:
    """A ranker with what a log of views says."""
    run = ftrie.train(ftrie.Spec(SPEC), [str(log)], progress=False)
    return ftrie.Ranker(run.model, {f"p{product}": {"item": f"p{product}"} for product in range(PRODUCTS)})


@dataclass
class Ftrie:
    """Ranks by a user's views, whose history and values are those of trainer and server.

    log: if it is given, the users' views are added, and all of them are learned after 1, 2, 4 … 1,024 users.
    """

    ranker: ftrie.Ranker | None
    log: Path | None = None
    _plan: HistoryPlan = field(init=False)

    def __post_init__(self) -> None:
        plan = HistoryPlan.of(parse_spec(SPEC))
        assert plan is not None and plan.columns == (ITEM,)
        self._plan, self._history, self._user = plan, UserHistory(), 0
        self._candidates = [f"p{product}" for product in range(PRODUCTS)]

    def begin(self, user: int) -> None:
        """A new history; a power of two: learn."""
        if self.log is not None and user & (user - 1) == 0 and user:
            self.ranker = learned(self.log)
        self._history, self._user = UserHistory(), user

    def see(self, views: Sequence[View]) -> None:
        """Add to the history, and to the log."""
        for time, product in views:
            self._history.add(VIEWED, time * 1_000_000, [[b"p%d" % product]])
        if self.log is not None:
            with self.log.open("a") as log:
                log.writelines(view_event(self._user, *each) for each in views)

    def show(self, step: Step) -> int:
        """The first of the ranking; before any model product 0."""
        if self.ranker is None:
            return 0
        values: Any = user_values(self._plan, self._history, step["time"] * 1_000_000)
        return int(self.ranker.rank(user=values, candidates=self._candidates, top_k=1).items[0].id[1:])

    def clicked(self, product: int, click: bool) -> None: ...


class Filter:
    """All that can be known: the distribution of a user's tastes, given RecoGym's own parameters."""

    def __init__(self, truth: dict[str, Any]) -> None:
        self._gamma, self._mu = np.array(truth["Gamma"]), np.array(truth["mu"])
        self._draw = np.random.default_rng(0)

    def begin(self, user: int) -> None:
        """Tastes as they are drawn."""
        self._tastes, self._log_weights = self._draw.normal(size=(PARTICLES, 5)), np.zeros(PARTICLES)
        self._drifts, self._best = False, None

    def see(self, views: Sequence[View]) -> None:
        """By Bayes; between views tastes drift."""
        for _, product in views:
            if self._drifts:
                weights = self._weights()
                if 1.0 / (weights**2).sum() < PARTICLES / 2:
                    places = (self._draw.random() + np.arange(PARTICLES)) / PARTICLES
                    chosen = np.searchsorted(np.cumsum(weights), places).clip(max=PARTICLES - 1)
                    self._tastes, self._log_weights = self._tastes[chosen], np.zeros(PARTICLES)
                self._tastes = self._tastes + 0.1 * self._draw.normal(size=self._tastes.shape)
            scores = self._tastes @ self._gamma.T + self._mu
            scores -= scores.max(axis=1, keepdims=True)
            self._log_weights = self._log_weights + scores[:, product] - np.log(np.exp(scores).sum(axis=1))
            self._drifts, self._best = True, None

    def show(self, step: Step) -> int:
        """The product of the highest expected CTR."""
        if self._best is None:
            self._best = int((self._weights() @ _ctr(self._tastes @ self._gamma.T + self._mu)).argmax())
        return self._best

    def clicked(self, product: int, click: bool) -> None:
        """By Bayes."""
        ctr = _ctr(self._tastes @ self._gamma[product] + self._mu[product])
        self._log_weights = self._log_weights + np.log(ctr if click else 1.0 - ctr)
        self._best = None

    def _weights(self) -> np.ndarray[Any, Any]:
        weights = np.exp(self._log_weights - self._log_weights.max())
        return weights / weights.sum()


def _ctr(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """RecoGym's CTR of a score (`reco_env_v1.ff`)."""

    def sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return 1.0 / (1.0 + np.exp(-x))

    return sigmoid(5.0 * sigmoid(2.0 * sigmoid(0.3 * scores) - 2.0) - 6.0)


def row(name: str, learns: str, rates: Rates) -> list[object]:
    """A row of the table."""
    shown, best = np.array(rates).mean(axis=0)
    return [name, learns, round(100.0 * shown, 3), round(100.0 * shown / best, 1), len(rates)]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ftrie-") as name:
        log, views = Path(name) / "log.jsonl", Path(name) / "views.jsonl"
        events = list(told("log", LEARNED, 0))
        log.write_text("".join(json.dumps(each) + "\n" for each in events))
        views.write_text(
            "".join(view_event(each["u"], each["t"], each["v"]) for each in events if "v" in each)
        )
        often = Counter(each["v"] for each in events if "v" in each).most_common(1)[0][0]
        draw, truth = random.Random(0), next(told("truth"))
        ranker, empty = learned(views), Path(name) / "served.jsonl"
        agents: list[tuple[str, str, Callable[[], Rates]]] = [
            ("random", "", lambda: play(Simple(lambda step: draw.randrange(PRODUCTS)))),
            ("most popular", "views", lambda: play(Simple(lambda step: often))),
            (
                "RecoGym's logistic agent",
                "views, clicks",
                lambda: next(told("play", "logistic", PLAYED, 1, log)),
            ),
            (
                "RecoGym's counts of a user",
                "views",
                lambda: next(told("play", "user counts", PLAYED, 1, log)),
            ),
            ("ftrie", "views", lambda: play(Ftrie(ranker))),
            ("ftrie, from nothing", "views, as they come", lambda: play(Ftrie(None, empty))),
            ("all that can be known", "", lambda: play(Filter(truth))),
            ("oracle", "", lambda: play(Simple(lambda step: int(np.argmax(step["ctrs"]))))),
        ]
        # Each plays with a process of its own, and nothing is timed.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = list(pool.map(lambda agent: agent[2](), agents))
        rows = [row(*agent[:2], rates) for agent, rates in zip(agents, found, strict=True)]
    columns = ("agent", "learns", "expected CTR, %", "% of the oracle at its steps", "steps")
    report(
        "recogym",
        f"RecoGym, seed 42, {PRODUCTS} products; {LEARNED:,} users learned, {PLAYED:,} others",
        columns,
        rows,
    )


if __name__ == "__main__":
    main()
