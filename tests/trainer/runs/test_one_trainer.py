"""One trainer a model: who is second is refused or waits; who lost its lease ends, and publishes nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.store import Store
from tests.trainer.runs.running import NAME, Trainer, command_of, once
from tests.worlds import event_logs


@pytest.fixture
def streams(store: Store) -> Store:
    """The store, its streams filled with 200 requests and their clicks."""
    store.impressions(NAME).append(event_logs(200).impressions)
    store.clicks(NAME).append(event_logs(200).clicks)
    return store


@pytest.mark.slow
def test_a_second_trainer_is_refused_and_a_spare_takes_over_once_the_first_has_ended(
    streams: Store, store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Trainer(tmp_path, store_url)
    first.until("version", 1)
    assert run(command_of(tmp_path, store_url, "second")) == 5
    assert f"hotels has a trainer: process {first.process.pid}" in capsys.readouterr().err
    spare = Trainer(tmp_path, store_url, "--wait", state="spare")
    first.terminate()
    assert spare.until("version", 1)["version"] > 1
    spare.terminate()


def test_the_same_folder_takes_its_lease_over_at_once_after_a_kill(streams, store_url, tmp_path):
    killed = Trainer(tmp_path, store_url, "--every", "100")
    version = killed.until("version", 1)["version"]
    killed.kill()
    streams.impressions(NAME).append(event_logs(202).impressions[-2:])
    streams.clicks(NAME).append(event_logs(202).clicks[-2:])
    assert once(tmp_path, store_url)["version"] > version


def test_one_that_does_not_publish_leaves_letters_and_online_metrics_to_the_models_trainer(
    streams: Store, store_url: str, tmp_path: Path
) -> None:
    streams.impressions(NAME).append([b"no event"])
    lease = streams.trainer_lease(NAME, "the one in production")
    lease.ttl_s = 600.0
    lease.take()
    assert once(tmp_path, store_url, "--no-publish", state="trial")["dead_letters"] == 1
    assert streams.dead_letters(NAME).last() == 0
    assert not list(streams.client.scan_iter(match=f"ftrie:{{{NAME}}}:outcomes:*"))
    lease.release()
    assert once(tmp_path, store_url, "--no-publish", state="trial")["dead_letters"] == 1
    assert streams.dead_letters(NAME).last() == 1
    assert list(streams.client.scan_iter(match=f"ftrie:{{{NAME}}}:outcomes:*"))
