"""deploy/: each file parses, calls ftrie with flags that it has, and names only metrics that there are."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ftrie.api.access import COOKIE_HEADER, RESOLVE_MS, RETRY
from ftrie.cli import build
from server.serve.ranking_service import SERVICE as RANKING
from server.serve.supervisor import KILL_AFTER_S
from server.serve.worker import LEAVE_S, REFUSE_S
from server.telemetry.meter import FAMILIES
from trainer.runs.status import FAMILIES as TRAINERS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\bftrie_[a-z_]+")
UNITS = sorted((DEPLOY / "systemd").glob("*.*"))
COMPOSE = DEPLOY / "docker/compose.yaml"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DNS_CACHE_S = 5.0
"""The time to live of CoreDNS's answers for a Kubernetes Service, by default."""


def parsed(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / path).read_text("utf-8")))


def by_kind(path: str) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in parsed(path)}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in parsed("prometheus/alerts.yml")[0]["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Every PromQL expression of the dashboard, the alerts and the documents, with where it stands."""
    dashboard = json.loads((DEPLOY / "grafana/ftrie.json").read_text("utf-8"))
    for panel in dashboard["panels"]:
        yield from ((f"panel {panel['title']}", target["expr"]) for target in panel["targets"])
    for variable in dashboard["templating"]["list"]:
        yield f"variable {variable['name']}", variable.get("definition", "")
    for note in dashboard["annotations"]["list"]:
        yield f"annotation {note['name']}", note["expr"]
    for alert in alerts():
        yield f"alert {alert['alert']}", alert["expr"]
    for path in sorted((ROOT / "ftrie/dashboard").rglob("*.py")):
        yield path.name, "\n".join(re.findall(r'"(ftrie_[a-z_]+)"', path.read_text("utf-8")))
    for page in ("metrics.md", "operating.md"):
        yield page, (ROOT / "docs" / page).read_text("utf-8")


def sampled() -> dict[str, set[str]]:
    """Each name a scrape has, with its labels."""
    names: dict[str, set[str]] = {}
    for family in FAMILIES.values():
        endings = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        for ending in endings:
            names[family.name + ending] = {*family.labels, *(["le"] if ending == "_bucket" else [])}
    return names | {family.name: {*family.labels} for family in TRAINERS}


def test_every_metric_and_label_named_is_one_that_a_server_or_a_trainer_serves() -> None:
    known = sampled()
    for where, text in expressions():
        for name in METRIC.findall(text):
            assert name in known or name in FAMILIES, f"{where}: {name}"
        for name, labels in re.findall(r"\b(ftrie_[a-z_]+)\{([^}]*)\}", text):
            used = set(re.findall(r"(\w+)\s*=~?\s*\"", labels)) - {"instance"}
            assert used <= known[name], f"{where}: {name} has no label {used - known[name]}"
        if where.endswith(".md"):
            continue
        for labels in re.findall(r"\bby \(([^)]*)\)", text):  # what is divided by
            names = [name for name in METRIC.findall(text) if name in known]
            possible = set().union(*(known[name] for name in names)) | {"instance"}
            assert set(re.split(r",\s*", labels)) <= possible, where
    dashboard = (DEPLOY / "grafana/ftrie.json").read_text("utf-8")
    assert [name for name in (*FAMILIES, *(each.name for each in TRAINERS)) if name not in dashboard] == []


def test_every_alert_is_in_the_document_says_what_happens_and_is_about_the_method_that_it_means() -> None:
    """A store that takes no feedback must not page as if ranking failed."""
    page = (ROOT / "docs/operating.md").read_text("utf-8")
    documented = re.findall(r"^\| (Ftrie\w+) \|", page, re.MULTILINE)
    assert documented == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["labels"]["severity"] and alert["annotations"]["summary"]
        for name, labels in re.findall(r"(ftrie_(?:errors|refused)_total)\{([^}]*)\}", alert["expr"]):
            assert "method=" in labels, (alert["alert"], name)


def test_alerts_see_series_that_appear_vanish_and_restart() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    tested = subprocess.run(
        [promtool, "test", "rules", str(DEPLOY / "prometheus/alerts_test.yml")],
        capture_output=True,
        text=True,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_panels_do_not_lie_on_each_other() -> None:
    panels = json.loads((DEPLOY / "grafana/ftrie.json").read_text("utf-8"))["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def called() -> Iterator[tuple[str, list[str]]]:
    """Every ftrie command line in deploy/, without the program's name."""
    for unit in UNITS:
        text = unit.read_text("utf-8")
        for line in re.findall(r"^ExecStart=/opt/ftrie/bin/ftrie (.+)$", text, re.MULTILINE):
            yield unit.name, line.split()
    for manifest in MANIFESTS:
        for document in parsed(f"kubernetes/{manifest.name}"):
            spec = document["spec"].get("jobTemplate", document).get("spec", {})
            pod = spec.get("template", {}).get("spec", {})
            yield from ((manifest.name, container["args"]) for container in pod.get("containers", ()))
            if document["kind"] == "RayJob":
                yield manifest.name, shlex.split(document["spec"]["entrypoint"])[1:]
    for service in parsed("docker/compose.yaml")[0]["services"].values():
        if service["image"].startswith("ftrie"):
            yield COMPOSE.name, service["command"]


def test_the_flags_given_to_ftrie_are_flags_it_has() -> None:
    for where, words in called():
        command: Any = build()
        while isinstance(command, typer.core.TyperGroup):
            command, words = command.commands[words[0]], words[1:]
        flags = {flag for option in command.params for flag in option.opts}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= flags, f"{where}: {given - flags}"


def test_several_trainers_have_a_spare() -> None:
    spec = by_kind("kubernetes/trainers.yaml")["StatefulSet"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (partition,) = [word for word in container["args"] if word.startswith("--partition=any/")]
    assert spec["replicas"] == int(partition.rpartition("/")[2]) + 1
    assert spec["podManagementPolicy"] == "Parallel"  # partitions wait for one another


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="this machine has no systemd")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        there = unit.read_text("utf-8").replace("/opt/ftrie/bin/ftrie", "/bin/true")
        (tmp_path / unit.name).write_text(there)
    names = [unit.name for unit in UNITS]
    finished = subprocess.run(
        ["systemd-analyze", "verify", *names], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    ours = [line for line in finished.stderr.splitlines() if "ftrie" in line]
    assert (finished.returncode, ours) == (0, [])


def test_every_timer_has_its_service_and_manifests_are_whole() -> None:
    names = {unit.name for unit in UNITS}
    assert {name.replace(".timer", ".service") for name in names if name.endswith(".timer")} <= names
    for manifest in MANIFESTS:
        for document in parsed(f"kubernetes/{manifest.name}"):
            assert {"apiVersion", "kind", "metadata", "spec"} <= document.keys(), manifest


def test_the_server_is_probed_by_grpc_health_and_its_ports_and_volumes_fit() -> None:
    pod = by_kind("kubernetes/server.yaml")["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["readinessProbe"]["grpc"] == {"port": ports["grpc"], "service": "ctr.v1.RankingService"}
    assert container["livenessProbe"]["tcpSocket"]["port"] in ports
    assert f"--port={ports['grpc']}" in container["args"]
    assert f"--metrics-port={ports['metrics']}" in container["args"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}
    labels = pod["metadata"]["labels"]
    for document in parsed("kubernetes/server.yaml"):
        selector = document["spec"].get("selector") or document["spec"]["podSelector"]
        assert selector.get("matchLabels", selector) == labels


def test_servers_are_replaced_one_by_one_and_given_the_time_that_a_drain_takes() -> None:
    kinds = {kind: document["spec"] for kind, document in by_kind("kubernetes/server.yaml").items()}
    spec, pod = kinds["Deployment"], kinds["Deployment"]["template"]["spec"]
    (container,) = pod["containers"]
    (drain_s,) = (float(word[8:]) for word in container["args"] if word.startswith("--drain="))
    _, before_s = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > float(before_s) + drain_s + KILL_AFTER_S
    assert drain_s > 2 * (LEAVE_S + REFUSE_S) and float(before_s) >= DNS_CACHE_S
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["minReadySeconds"] * 1000 > RESOLVE_MS
    assert spec["replicas"] > kinds["PodDisruptionBudget"]["maxUnavailable"] == 1
    assert any(word.startswith("--connection-age=") for word in container["args"])
    assert kinds["Service"]["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in kinds["Service"]
    for constraint in pod["topologySpreadConstraints"]:
        assert constraint["labelSelector"] == spec["selector"]


def test_envoy_hashes_the_header_that_clients_send_and_checks_the_health_of_ranking() -> None:
    static = parsed("envoy/envoy.yaml")[0]["static_resources"]
    (listener,), (cluster,) = static["listeners"], static["clusters"]
    (connections,) = listener["filter_chains"][0]["filters"]
    (host,) = connections["typed_config"]["route_config"]["virtual_hosts"]
    (route,) = (each["route"] for each in host["routes"])
    assert route["cluster"] == cluster["name"] == cluster["load_assignment"]["cluster_name"]
    assert (route["hash_policy"], cluster["lb_policy"]) == (
        [{"header": {"header_name": COOKIE_HEADER}}],
        "RING_HASH",
    )
    (check,) = cluster["health_checks"]
    assert check["grpc_health_check"] == {"service_name": RANKING}
    again = {word.upper() for word in route["retry_policy"]["retry_on"].split(",")}
    assert again >= set(RETRY["retryableStatusCodes"])
    assert route["retry_policy"]["num_retries"] == RETRY["maxAttempts"] - 1


def test_the_trainer_keeps_its_checkpoints_on_a_volume_and_is_given_time_to_end() -> None:
    documents = parsed("kubernetes/trainer.yaml")
    spec = by_kind("kubernetes/trainer.yaml")["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    (container,), (claim,) = pod["containers"], spec["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert spec["replicas"] == 1 and pod["terminationGracePeriodSeconds"] >= 60
    assert f"--checkpoint={mounts[claim['metadata']['name']]}/ads" in container["args"]
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"]}
    (port,) = container["ports"]
    assert f"--metrics-port={port['containerPort']}" in container["args"]
    assert spec["serviceName"] in [document["metadata"]["name"] for document in documents]
    unit = (DEPLOY / "systemd/ftrie-trainer.service").read_text("utf-8")
    assert "Restart=always" in unit and "--checkpoint ${STATE_DIRECTORY}/" in unit


def test_the_ray_cluster_has_a_cpu_for_every_worker_and_its_volumes_and_token_fit() -> None:
    kinds = by_kind("kubernetes/distributed.yaml")
    spec = kinds["RayJob"]["spec"]
    command = shlex.split(spec["entrypoint"])
    flags = dict(word.removeprefix("--").split("=") for word in command if "=" in word)
    head, (workers,) = spec["rayClusterSpec"]["headGroupSpec"], spec["rayClusterSpec"]["workerGroupSpecs"]
    cpus = workers["replicas"] * int(workers["rayStartParams"]["num-cpus"])
    assert head["rayStartParams"]["num-cpus"] == "0" and int(flags["workers"]) <= cpus
    assert (
        command[:2] == ["ftrie", "train-distributed"] and flags["address"] == "auto" and "--resume" in command
    )
    templates = [spec["submitterPodTemplate"], head["template"], workers["template"]]
    for template in templates:
        (container,) = template["spec"]["containers"]
        names = {variable["name"] for variable in container["env"]}
        assert {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} <= names
        mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", ())}
        assert mounts.keys() == {volume["name"] for volume in template["spec"].get("volumes", ())}
    for template in templates[1:]:
        assert template["metadata"]["labels"] == kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
        (container,) = template["spec"]["containers"]
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/logs", "/dev/shm", "/tmp"}


def test_compose_volumes_and_ports_fit() -> None:
    (written,) = parsed("docker/compose.yaml")
    named = [volume.partition(":")[0] for s in written["services"].values() for volume in s["volumes"]]
    assert {name for name in named if "/" not in name} == written["volumes"].keys()
    for service in written["services"].values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:") and port.rpartition(":")[2] in service["command"]


def test_every_job_that_is_scraped_has_a_port_that_a_unit_serves() -> None:
    scraped = parsed("prometheus/scrape.yml")[0]["scrape_configs"]
    targets = [target for job in scraped for config in job["static_configs"] for target in config["targets"]]
    units = "".join(unit.read_text("utf-8") for unit in UNITS)
    assert all(f"--metrics-port {target.rpartition(':')[2]}" in units for target in targets)


def test_the_image_holds_every_package_and_runs_as_nobody_of_note() -> None:
    dockerfile = (DEPLOY / "docker/Dockerfile").read_text("utf-8")
    ignored = (DEPLOY / "docker/Dockerfile.dockerignore").read_text("utf-8").splitlines()
    for package in ("ftrie", "server", "model_store", "trainer", "proto", "pyproject.toml", "README.md"):
        assert f"!{package}" in ignored
        assert re.search(rf"^COPY .*\b{re.escape(package)}\b", dockerfile, re.MULTILINE)
    assert re.search(r"^USER \d{5}$", dockerfile, re.MULTILINE)
