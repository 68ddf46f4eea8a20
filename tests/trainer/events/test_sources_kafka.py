"""Partitions of Kafka topics as sources, on the mock brokers that librdkafka brings along."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_store.errors import InputError, SourceUnavailable
from model_store.spec.spec import ModelSpec
from trainer.events import kafka as kafka_client
from trainer.events.events import NEVER_US, Chunk, Source, SourcePosition
from trainer.events.kafka import PartitionSource, kafka_name
from trainer.events.open_sources import open_sources

confluent_kafka = pytest.importorskip("confluent_kafka")
SPEC = ModelSpec.model_validate({"model": {"name": "ads"}, "input": {"label": "click"}})
FIRST_MS = 1_700_000_000_000


class Brokers:
    """A mock cluster, which lives in the process of its producer and as long as that."""

    def __init__(self) -> None:
        self.producer = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 2})
        [broker] = self.producer.list_topics(timeout=10).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def put(self, topic: str, *numbers: int, partition: int = 0, at_ms: int | None = None) -> None:
        for number in numbers:
            self.producer.produce(
                topic,
                json.dumps({"n": number}).encode(),
                partition=partition,
                timestamp=FIRST_MS + number if at_ms is None else at_ms,
            )
        assert self.producer.flush(10) == 0


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    made.producer.flush(1)


def opened(
    brokers: Brokers,
    topic: str = "clicks",
    *,
    positions: list[SourcePosition] | None = None,
    once: bool = False,
    **options: str,
) -> list[Source]:
    query = "&".join(f"{key}={value}" for key, value in options.items())
    name = f"kafka://{brokers.address}/{topic}?{query}"
    return open_sources([name], SPEC, None, json.loads(json.dumps(positions or [])), print, once=once)


def numbers_of(chunk: Chunk) -> list[int]:
    return [json.loads(line)["n"] for line in chunk.data.splitlines()]


def all_of(source: Source) -> tuple[list[int], SourcePosition | None]:
    found, position = [], None
    while (chunk := source.read()) is not None:
        found += numbers_of(chunk)
        position = source.position(chunk, len(chunk))
    return found, position


def test_every_partition_is_a_source_and_messages_come_by_their_timestamps(brokers: Brokers) -> None:
    brokers.put("clicks", 1, 3, partition=0)
    brokers.put("clicks", 2, partition=1)
    sources = opened(brokers)
    assert [source.name for source in sources] == [f"kafka clicks#{n}" for n in range(4)]
    chunk = sources[0].read()
    assert chunk is not None and chunk.arrived_us is not None
    assert numbers_of(chunk) == [1, 3]
    assert chunk.arrived_us.tolist() == [(FIRST_MS + n) * 1000 for n in (1, 3)]
    assert [sources[0].where(chunk, number) for number in (0, 1)] == ["0", "1"]
    assert sources[0].watermark_us() == (FIRST_MS + 3) * 1000
    assert sources[0].read() is None and all_of(sources[1])[0] == [2] and sources[2].read() is None
    brokers.put("clicks", 4)
    source = sources[0]
    while (chunk := source.read()) is None:  # until the brokers have sent it
        pass
    assert numbers_of(chunk) == [4]
    for each in sources:
        each.close()


def test_a_timestamp_that_falls_counts_as_the_one_before(brokers: Brokers) -> None:
    brokers.put("clicks", 1, at_ms=FIRST_MS + 100)
    brokers.put("clicks", 2, at_ms=FIRST_MS)
    source = opened(brokers)[0]
    chunk = source.read()
    assert chunk is not None and chunk.arrived_us is not None
    assert chunk.arrived_us.tolist() == [(FIRST_MS + 100) * 1000] * 2
    again = PartitionSource(
        source.name, {"bootstrap.servers": brokers.address}, "clicks", 0, source.position(chunk, 1), print
    )
    rest = again.read()
    assert rest is not None and rest.arrived_us is not None
    assert numbers_of(rest) == [2] and rest.arrived_us.tolist() == [(FIRST_MS + 100) * 1000]


@pytest.mark.slow
def test_reading_can_go_on_from_every_place(brokers: Brokers) -> None:
    brokers.put("clicks", *range(5))
    source, *others = opened(brokers, once=True)
    chunk = source.read()
    assert chunk is not None
    positions = [source.position(chunk, count) for count in range(len(chunk) + 1)]
    rest = [{"source": other.name, "offset": None} for other in others]
    for taken, position in enumerate(positions):
        again = opened(brokers, positions=[position, *rest], once=True)[0]
        assert all_of(again)[0] == list(range(taken, 5))
        again.close()


def test_with_once_a_source_ends_at_the_end_of_its_partition(brokers: Brokers) -> None:
    brokers.put("clicks", *range(2500))
    source, empty, *_ = opened(brokers, once=True)
    assert all_of(source)[0] == list(range(2500))
    assert source.watermark_us() == NEVER_US
    assert empty.read() is None and empty.watermark_us() == NEVER_US


def test_messages_without_a_value_are_passed_over_and_a_line_is_one_line(brokers: Brokers) -> None:
    brokers.producer.produce("clicks", None, key=b"k", partition=0, timestamp=FIRST_MS)
    brokers.producer.produce("clicks", b'{"n":\n7}', partition=0, timestamp=FIRST_MS)
    brokers.producer.flush(10)
    source = opened(brokers)[0]
    chunk = source.read()
    assert chunk is not None
    assert chunk.data == b'{"n": 7}\n' and source.position(chunk, 1)["offset"] == 2


def test_a_place_beyond_the_end_is_said_and_read_from_the_start(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers.put("clicks", 1, 2)
    position = {"source": "kafka clicks#0", "offset": 99}
    others = [{"source": f"kafka clicks#{n}", "offset": None} for n in (1, 2, 3)]
    source = opened(brokers, positions=[position, *others])[0]
    assert all_of(source)[0] == [1, 2]
    assert "ends at offset 2 though it was read up to 99" in capsys.readouterr().out


def test_lag_counts_messages_to_the_end(brokers: Brokers) -> None:
    brokers.put("clicks", *range(1200))
    source = opened(brokers)[0]
    chunk = source.read()
    assert chunk is not None
    assert source.lag().events == 1200 - len(chunk)
    all_of(source)
    assert source.lag().events == 0 and source.lag().seconds == 0.0


def test_a_group_is_told_what_was_read(brokers: Brokers) -> None:
    brokers.put("clicks", 1, 2, 3)
    source = opened(brokers, group="watched")[0]
    all_of(source)
    source.close()
    watcher = confluent_kafka.Consumer({"bootstrap.servers": brokers.address, "group.id": "watched"})
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
def test_brokers_that_went_away_after_the_end_are_noticed(brokers: Brokers) -> None:
    child = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "from tests.trainer.events.test_sources_kafka import Brokers\n"
            "brokers = Brokers(); brokers.put('clicks', 1); print(brokers.address, flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    config = {"bootstrap.servers": child.stdout.readline().strip()}
    source = PartitionSource("kafka clicks#0", config, "clicks", 0, {}, print)
    assert all_of(source)[0] == [1]
    child.kill()
    child.wait()
    with pytest.raises(SourceUnavailable):
        while True:
            source.read()
    source.close()


def test_a_partition_that_is_new_begins_at_its_start(brokers: Brokers) -> None:
    brokers.put("clicks", 1, partition=0)
    brokers.put("clicks", 2, partition=3)
    positions = [{"source": f"kafka clicks#{n}", "offset": None} for n in (0, 1, 2)]
    sources = opened(brokers, positions=positions)
    assert all_of(sources[3])[0] == [2]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kafka://localhost:9092", "expected kafka://HOST:PORT"),
        ("kafka:///topic", "expected kafka://HOST:PORT"),
        ("kafka://h:1/t?auto.offset.reset=latest", "the option auto.offset.reset cannot be set"),
        ("kafka://h:1/t?config=/nowhere.properties", "cannot be read"),
    ],
)
def test_a_name_that_cannot_be_understood_says_what_was_expected(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        kafka_name(name)


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


def test_an_option_that_is_none_is_refused(brokers: Brokers) -> None:
    with pytest.raises(InputError, match="a Kafka option is wrong"):
        opened(brokers, **{"no.such.option": "1"})


def test_without_the_extra_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(InputError, match=r"ftrie\[kafka\]"):
        open_sources(["kafka://h:1/t"], SPEC, None)
