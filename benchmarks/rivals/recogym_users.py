"""RecoGym's users, in a process of Python 3.8 with recogym 0.1.3.0 (`benchmarks.recogym` makes its environment).

    python recogym_users.py log USERS EPOCH              the events of users who are shown random products
    python recogym_users.py serve USERS EPOCH            asks the other side of the pipes for each product
    python recogym_users.py play AGENT USERS EPOCH LOG   one of RecoGym's own agents: its CTR and the best product's
    python recogym_users.py truth                        what decides the users' views and clicks

All answers are JSON lines. Of `serve`: each step writes a line with the user, the time, the products viewed since, and
the CTR that each product would have; it reads the number of the product to show, and draws the click. The CTRs are for
the figures, and for the oracle: an agent must not look at them.
"""

import contextlib
import json
import sys
import types
from pathlib import Path

import numpy as np

SEED, PRODUCTS = 42, 10


def _package(name, path):
    module = types.ModuleType(name)
    module.__path__ = [str(path)]
    sys.modules[name] = module
    return module


# The package's own __init__ files import PyTorch, TensorFlow and matplotlib for agents that are not used here.
_ROOT = next(path for path in map(Path, sys.path) if (path / "recogym" / "envs").is_dir()) / "recogym"
_package("recogym", _ROOT)
_package("recogym.envs", _ROOT / "envs")
_AGENTS = _package("recogym.agents", _ROOT / "agents")

from recogym.agents.abstract import Agent  # noqa: E402

_AGENTS.Agent = Agent

from recogym.agents.logreg_poly import LogregPolyAgent, logreg_poly_args  # noqa: E402
from recogym.agents.organic_user_count import OrganicUserEventCounterAgent, organic_user_count_args  # noqa: E402
from recogym.envs.configuration import Configuration  # noqa: E402
from recogym.envs.context import DefaultContext  # noqa: E402
from recogym.envs.observation import Observation  # noqa: E402
from recogym.envs.reco_env_v1 import RecoEnv1, env_1_args, ff  # noqa: E402
from recogym.envs.session import OrganicSessions  # noqa: E402

# Each agent with the setting that earned it most.
AGENTS = {
    "logistic": (LogregPolyAgent, logreg_poly_args, {}),
    "user counts": (
        OrganicUserEventCounterAgent,
        organic_user_count_args,
        {"select_randomly": False, "exploit_explore": False},
    ),
}


def environment(epoch):
    env = RecoEnv1()
    env.init_gym({**env_1_args, "random_seed": SEED, "num_products": PRODUCTS})
    env.reset_random_seed(epoch)
    return env


def ctrs(env):
    """The CTR of each product at the step that follows, as `draw_click` computes it."""
    if env.context_switch:
        env.cached_state_seed = (env.beta @ env.omega + env.mu_bandit).ravel()
    return ff(env.cached_state_seed)


def users(env, number):
    """(user, observation, reward, done) until each is gone; send the product to show."""
    for user in range(number):
        env.reset(user)
        observation, reward, done, _ = env.step(None)
        while True:
            product = yield user, observation, reward, done
            if done:
                break
            observation, reward, done, _ = env.step(product)


def views(observation):
    return [[int(each["t"]), int(each["v"])] for each in observation.sessions()]


def log(number, epoch):
    env = environment(epoch)
    draw = np.random.RandomState(SEED + epoch)
    steps, shown = users(env, number), None
    user, observation, reward, done = next(steps)
    while True:
        if shown is not None and reward is not None:
            print(json.dumps({**shown, "c": int(reward)}))
        for t, v in views(observation):
            print(json.dumps({"u": user, "t": t, "v": v}))
        product = None if done else int(draw.choice(PRODUCTS))
        shown = None if done else {"u": user, "t": int(observation.context().time()), "a": product}
        try:
            user, observation, reward, done = steps.send(product)
        except StopIteration:
            return


def trained(name, path):
    """The agent, which has seen the log as RecoGym's own `test_agent` shows it."""
    kind, arguments, own = AGENTS[name]
    agent = kind(Configuration({**arguments, "num_products": PRODUCTS, "random_seed": SEED, **own}))
    session, last = OrganicSessions(), None
    for event in map(json.loads, Path(path).read_text().splitlines()):
        if last is not None and event["u"] != last:
            agent.train(Observation(DefaultContext(0, last), session), None, None, True)
            session = OrganicSessions()
        last = event["u"]
        context = DefaultContext(event["t"], last)
        if "v" in event:
            session.next(context, np.int16(event["v"]))
        else:
            action = {"t": event["t"], "u": last, "a": np.int16(event["a"]), "ps": 1 / PRODUCTS, "ps-a": ()}
            agent.train(Observation(context, session), action, event["c"], False)
            session = OrganicSessions()
    return agent


def play(name, number, epoch, path):
    agent, env = trained(name, path), environment(epoch)
    steps, found, before = users(env, number), [], None
    user, observation, reward, done = next(steps)
    while True:
        if user != before:
            agent.reset()
        before, product = user, None
        if not done:
            with contextlib.redirect_stdout(sys.stderr):  # an agent says when its model is built
                product = int(agent.act(observation, reward, done)["a"])
            rates = ctrs(env)
            found.append((float(rates[product]), float(rates.max())))
        try:
            user, observation, reward, done = steps.send(product)
        except StopIteration:
            break
    print(json.dumps(found))


def serve(number, epoch):
    env = environment(epoch)
    steps = users(env, number)
    user, observation, reward, done = next(steps)
    while True:
        step = {
            "user": user,
            "time": int(observation.context().time()),
            "views": views(observation),
            "click": reward,
            "ctrs": None if done else ctrs(env).tolist(),
        }
        print(json.dumps({**step, "click": None if reward is None else int(reward)}), flush=True)
        product = None if done else int(sys.stdin.readline())
        try:
            user, observation, reward, done = steps.send(product)
        except StopIteration:
            return


def truth():
    env = environment(0)
    parts = {"Gamma": env.Gamma, "mu": env.mu_organic.ravel()}
    print(json.dumps({name: part.tolist() for name, part in parts.items()}))


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "log":
        log(*map(int, words))
    elif what == "play":
        play(words[0], int(words[1]), int(words[2]), words[3])
    elif what == "serve":
        serve(*map(int, words))
    else:
        truth()
