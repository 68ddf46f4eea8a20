"""Partitions of Kafka topics as sources, on the mock brokers that librdkafka brings along."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from model_store.errors import InputError, SourceUnavailable
from model_store.spec.spec import ModelSpec
from tests.trainer.events.sources import all_of, numbers_of, read
from trainer.events.events import NEVER_US, Source, SourcePosition
from trainer.sources import kafka as kafka_client
from trainer.sources.kafka import PartitionSource, kafka_name
from trainer.sources.open_sources import open_sources

confluent_kafka = pytest.importorskip("confluent_kafka")
SPEC = ModelSpec.model_validate({"model": {"name": "ads"}, "input": {"label": "click"}})
FIRST_MS = 1_700_000_000_000


class Brokers:
    """A mock cluster, which lives in the process of its producer and as long as that."""

    def __init__(self) -> None:
        self.producer = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 2})
        [broker] = self.producer.list_topics(timeout=10).brokers.values()
        self.address = f"{broker.host}:{broker.port}"
        self.config = {"bootstrap.servers": self.address}

    def put(self, *numbers: int, partition: int = 0, at_ms: int | None = None) -> None:
        for number in numbers:
            self.send({"n": number}, partition, FIRST_MS + number if at_ms is None else at_ms)
        assert self.producer.flush(10) == 0

    def send(self, event: Any, partition: int = 0, at_ms: int = FIRST_MS) -> None:
        value = event if event is None or isinstance(event, bytes) else json.dumps(event).encode()
        self.producer.produce("clicks", value, key=b"k", partition=partition, timestamp=at_ms)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    made.producer.flush(1)


def opened(
    brokers: Brokers, *, positions: Sequence[SourcePosition] = (), once: bool = False, **options: str
) -> list[Source]:
    query = "&".join(f"{key}={value}" for key, value in options.items())
    name = f"kafka://{brokers.address}/clicks?{query}"
    return open_sources([name], SPEC, None, json.loads(json.dumps(positions)), print, once=once)


def places(*partitions: int) -> list[SourcePosition]:
    """Of partitions that have brought nothing yet."""
    return [{"source": f"kafka clicks#{n}", "offset": None} for n in partitions]


def test_every_partition_is_a_source_and_messages_come_by_their_timestamps(brokers: Brokers) -> None:
    brokers.put(1, 3, partition=0)
    brokers.put(2, partition=1)
    sources = opened(brokers)
    assert [source.name for source in sources] == [f"kafka clicks#{n}" for n in range(4)]
    chunk = read(sources[0])
    assert numbers_of(chunk) == [1, 3]
    assert chunk.arrived_us.tolist() == [(FIRST_MS + n) * 1000 for n in (1, 3)]
    assert [sources[0].where(chunk, number) for number in (0, 1)] == ["0", "1"]
    assert sources[0].watermark_us() == (FIRST_MS + 3) * 1000
    assert sources[0].read() is None and all_of(sources[1]) == [2] and sources[2].read() is None
    brokers.put(4)
    while (chunk := sources[0].read()) is None:  # until the brokers have sent it
        pass
    assert numbers_of(chunk) == [4]
    for each in sources:
        each.close()


def test_a_timestamp_that_falls_counts_as_the_one_before(brokers: Brokers) -> None:
    brokers.put(1, at_ms=FIRST_MS + 100)
    brokers.put(2, at_ms=FIRST_MS)
    source = opened(brokers)[0]
    chunk = read(source)
    assert chunk.arrived_us.tolist() == [(FIRST_MS + 100) * 1000] * 2
    again = PartitionSource(source.name, brokers.config, "clicks", 0, source.position(chunk, 1), print)
    rest = read(again)
    assert numbers_of(rest) == [2] and rest.arrived_us.tolist() == [(FIRST_MS + 100) * 1000]


def test_a_timestamp_of_the_future_counts_as_now_and_so_do_those_after_it(brokers: Brokers) -> None:
    ahead_ms = int(time.time() * 1000) + 3_600_000
    brokers.put(1, at_ms=ahead_ms)
    brokers.put(2, at_ms=ahead_ms - 3_600_000)
    chunk = read(opened(brokers)[0])
    assert numbers_of(chunk) == [1, 2] and (chunk.arrived_us < (ahead_ms - 3_000_000) * 1000).all()


@pytest.mark.slow
def test_reading_can_go_on_from_every_place(brokers: Brokers) -> None:
    brokers.put(*range(5))
    source, *_ = opened(brokers, once=True)
    chunk = read(source)
    for taken in range(len(chunk) + 1):
        position = source.position(chunk, taken)
        again = opened(brokers, positions=[position, *places(1, 2, 3)], once=True)[0]
        assert all_of(again) == list(range(taken, 5))
        again.close()


def test_with_once_a_source_ends_at_the_end_of_its_partition_to_which_the_lag_counts(brokers):
    brokers.put(*range(1200))
    source, empty, *_ = opened(brokers, once=True)
    first = read(source)
    assert source.lag().events == 1200 - len(first) > 0
    assert numbers_of(first) + all_of(source) == list(range(1200))
    assert source.lag().events == 0 and source.lag().seconds == 0.0
    assert source.watermark_us() == NEVER_US
    assert empty.read() is None and empty.watermark_us() == NEVER_US


def test_messages_without_a_value_are_passed_over_and_a_line_is_one_line(brokers: Brokers) -> None:
    brokers.send(None)
    brokers.send(b'{"n":\n7}')
    brokers.producer.flush(10)
    source = opened(brokers)[0]
    chunk = read(source)
    assert chunk.data == b'{"n": 7}\n' and source.position(chunk, 1)["offset"] == 2


def test_a_place_beyond_the_end_is_said_and_read_from_the_start_as_a_new_partition_is(brokers, capsys):
    brokers.put(1, 2)
    brokers.put(3, partition=3)
    position = {"source": "kafka clicks#0", "offset": 99}
    sources = opened(brokers, positions=[position, *places(1, 2)])
    assert all_of(sources[0]) == [1, 2]
    assert "ends at offset 2 though it was read up to 99" in capsys.readouterr().out
    assert all_of(sources[3]) == [3]


def test_a_group_is_told_what_was_read(brokers: Brokers) -> None:
    brokers.put(1, 2, 3)
    source = opened(brokers, group="watched")[0]
    all_of(source)
    source.close()
    watcher = confluent_kafka.Consumer(brokers.config | {"group.id": "watched"})
    [found] = watcher.committed([confluent_kafka.TopicPartition("clicks", 0)], timeout=10)
    watcher.close()
    assert found.offset == 3


@pytest.mark.slow
def test_brokers_that_do_not_answer_are_away_and_nothing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "ANSWER_S", 0.5)
    config = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(SourceUnavailable, match="are the brokers there"):
        kafka_client.partitions_of(config, "clicks")
    source = PartitionSource("kafka clicks#0", config, "clicks", 0, {"offset": 7}, print)
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="clicks#0"):
            source.read()
    assert source.watermark_us() == 0
    source.close()


@pytest.mark.slow
def test_brokers_that_went_away_after_the_end_are_noticed() -> None:
    script = (
        "from tests.trainer.events.test_sources_kafka import Brokers\n"
        "brokers = Brokers(); brokers.put(1); print(brokers.address, flush=True); input()"
    )
    command = [sys.executable, "-c", script]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    config = {"bootstrap.servers": child.stdout.readline().strip()}
    source = PartitionSource("kafka clicks#0", config, "clicks", 0, {}, print)
    assert all_of(source) == [1]
    child.kill()
    child.wait()
    with pytest.raises(SourceUnavailable):
        while True:
            source.read()
    source.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kafka://localhost:9092", "expected kafka://HOST:PORT"),
        ("kafka:///topic", "expected kafka://HOST:PORT"),
        ("kafka://h:1/t?auto.offset.reset=latest", "the option auto.offset.reset cannot be set"),
        ("kafka://h:1/t?config=/nowhere.properties", "cannot be read"),
        ("kafka://h:1/t?no.such.option=1", "a Kafka option is wrong"),
    ],
)
def test_a_name_that_cannot_be_understood_says_what_was_expected(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_sources([name], SPEC, None)


def test_without_the_extra_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(InputError, match=r"ftrie\[kafka\]"):
        open_sources(["kafka://h:1/t"], SPEC, None)


def test_options_can_stand_in_a_file_where_nobody_sees_them(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# secrets\nsasl.password=p=1\n\nsecurity.protocol = SASL_SSL\n")
    found = kafka_name(f"kafka://h:1,g:2/clicks?config={file}&group=g")
    assert found.topic == "clicks"
    assert found.config == {
        "bootstrap.servers": "h:1,g:2",
        "sasl.password": "p=1",
        "security.protocol": "SASL_SSL",
        "group.id": "g",
    }
