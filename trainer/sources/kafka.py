"""One partition of a Kafka topic as a source. Needs the extra `kafka`, imported when a source is opened.

The partition is assigned explicitly and read from the offset in the position; offsets committed by a consumer group are
ignored. A message's timestamp is its time of arrival; one older than its predecessor's counts as equal to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np

from model_store.errors import InputError, SourceUnavailable, installing
from trainer.events.events import (
    NEVER_US,
    READ_EVENTS,
    Chunk,
    Lag,
    Opener,
    Opening,
    Source,
    SourceKind,
    SourcePosition,
    lines_of,
    on_one_line,
)
from trainer.events.parse import AHEAD_US

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message


_COMMIT_EVERY_S = 5.0
_LOOK_EVERY_S = 60.0


class PartitionSource:
    """Reads one partition from a position on; see Source for the methods. Marks are the offsets after each message.

    Messages without a value are skipped. If the config names a group, the offset read is committed every few seconds,
    for monitoring only.
    """

    def __init__(
        self,
        name: str,
        config: Mapping[str, Any],
        topic: str,
        partition: int,
        position: SourcePosition,
        on_note: Callable[[str], None],
        *,
        once: bool = False,
    ) -> None:
        self.name = name
        self.lost = int(position.get("lost", 0))
        self._on_note = on_note
        self._topic, self._partition = topic, partition
        self._once = once
        self._commits = "group.id" in config
        self._offset: int | None = position.get("offset")
        self._floor_us = int(position.get("floor_us", 0))
        self._at_end = self._ended = False
        self._trouble: str | None = None
        self._error: KafkaError | None = None
        self._next_commit_s = self._next_look_s = time.monotonic()
        self._partitions = 0
        self._consumer: Consumer | None = consumer_of(config, self._on_error)
        self._assign()
        self.start = self._position()

    def read(self) -> Chunk | None:
        """The next messages, at most READ_EVENTS. Waits only until the brokers report the end of the partition.

        Raises SourceUnavailable if they do not answer within ANSWER_S, or answer with an error.
        """
        if self._ended:
            return None
        self._check()
        until = time.monotonic() + ANSWER_S
        while True:
            rest = until - time.monotonic()
            chunk = self._chunk(self._open().consume(READ_EVENTS, 0 if self._at_end else min(0.2, rest)))
            if chunk is not None:
                return chunk
            if self._at_end:
                self._ended = self._once
                return None
            self._check()
            if rest <= 0:
                raise SourceUnavailable(f"{self.name}: the brokers sent nothing within {ANSWER_S:.0f} s")

    def watermark_us(self) -> int:
        """The greatest timestamp so far; NEVER_US once all is read with `once`."""
        return NEVER_US if self._ended else self._floor_us

    def position(self, chunk: Chunk, count: int) -> SourcePosition:
        """The position after `count` messages of the chunk."""
        if count == 0:
            return chunk.before
        assert chunk.arrived_us is not None
        return {
            **chunk.before,
            "offset": int(chunk.marks[count - 1, 0]),
            "floor_us": int(chunk.arrived_us[count - 1]),
        }

    def where(self, chunk: Chunk, number: int) -> str:
        """The message's offset in the partition."""
        return str(int(chunk.marks[number, 0]) - 1)

    def lag(self) -> Lag:
        """Messages up to the last known end of the partition; their age is bounded by that of the last one read."""
        consumer = self._open()
        _, high = consumer.get_watermark_offsets(self._topic_partition(), cached=True)
        self._look_for_partitions()
        if high < 0 or self._offset is None:
            return Lag()
        events = max(0, high - self._offset)
        return Lag(events=events, seconds=max(0.0, time.time() - self._floor_us / 1e6) if events else 0.0)

    def holds(self) -> str:
        """The offset of the partition's end; see Source."""
        consumer = self._consumer
        high = (
            -1
            if consumer is None
            else consumer.get_watermark_offsets(self._topic_partition(), cached=True)[1]
        )
        there = f"has messages up to offset {high:,}" if high >= 0 else "has not answered yet"
        return f"{self.name} {there}, read to offset {self._offset or 0:,}"

    def close(self) -> None:
        """Close the consumer. May be called twice."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def _open(self) -> Consumer:
        if self._consumer is None:
            raise SourceUnavailable(f"{self.name}: is closed")
        return self._consumer

    def _position(self) -> SourcePosition:
        return {
            "source": self.name,
            "offset": self._offset,
            "floor_us": self._floor_us,
            "lost": self.lost,
        }

    def _topic_partition(self, offset: int | None = None) -> Any:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        return TopicPartition(self._topic, self._partition, OFFSET_BEGINNING if offset is None else offset)

    def _assign(self) -> None:
        self._open().assign([self._topic_partition(self._offset)])

    def _on_error(self, error: KafkaError) -> None:
        """Called by the client within `consume`; errors of a single broker are ignored, since others take over."""
        from confluent_kafka import KafkaError

        if error.fatal() or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION):
            self._trouble = error.str()

    def _chunk(self, messages: Sequence[Message]) -> Chunk | None:
        """The messages that have a value; errors among them are kept for `_check`."""
        from confluent_kafka import KafkaError

        before = self._position()
        payloads, marks, arrived = [], [], []
        for message in messages:
            error = message.error()
            if error is not None:
                self._at_end = error.code() == KafkaError._PARTITION_EOF
                self._error = None if self._at_end else error
                continue
            self._at_end, self._trouble = False, None
            offset = self._offset = (message.offset() or 0) + 1
            kind, ms = message.timestamp()
            # A timestamp of the future would be that of every later message too.
            now_us = time.time_ns() // 1000
            stamped_us = now_us if ms * 1000 > now_us + AHEAD_US else ms * 1000
            self._floor_us = max(self._floor_us, stamped_us if kind else 0)
            if (value := message.value()) is not None:
                payloads.append(on_one_line(value))
                marks.append(offset)
                arrived.append(self._floor_us)
        if not payloads:
            return None
        self._commit()
        return Chunk(
            *lines_of(payloads), np.array(arrived, np.int64), np.array(marks, np.int64)[:, None], before
        )

    def _reset_offset(self) -> None:
        """The offset is not in the partition: its messages were deleted, or the topic was recreated."""
        low, high = self._watermarks()
        if self._offset is not None and self._offset < low:
            self.lost += low - self._offset
            self._on_note(
                f"{self.name}: {low - self._offset:,} messages were deleted before they were read; let the topic keep "
                "them longer (retention.ms, retention.bytes), or give the trainer more of the machine"
            )
        elif self._offset is not None:
            self._on_note(
                f"{self.name} ends at offset {high:,} though it was read up to {self._offset:,}: the topic was "
                "recreated, or a broker lost its end; reading from its start"
            )
        self._offset = low
        self._assign()

    def _check(self) -> None:
        """Raise SourceUnavailable while the brokers are unavailable; the client does not report their return: poll."""
        from confluent_kafka import KafkaError

        news = self._error
        if news is not None and news.code() in (
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError.OFFSET_OUT_OF_RANGE,
        ):
            self._reset_offset()
        elif news is not None:
            self._trouble = news.str()
        self._error = None
        if self._trouble is not None:
            self._watermarks()
            self._trouble = None

    def _watermarks(self) -> tuple[int, int]:
        from confluent_kafka import KafkaException

        try:
            low, high = self._open().get_watermark_offsets(self._topic_partition(), timeout=1.0)
        except KafkaException as error:
            raise SourceUnavailable(f"{self.name}: {self._trouble or error.args[0].str()}") from error
        return low, high

    def _commit(self) -> None:
        if not self._commits or time.monotonic() < self._next_commit_s:
            return
        self._next_commit_s = time.monotonic() + _COMMIT_EVERY_S
        self._open().commit(offsets=[self._topic_partition(self._offset)], asynchronous=True)

    def _look_for_partitions(self) -> None:
        """Note, once for all partitions, that the topic has more partitions than are read."""
        if self._partition != 0 or time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + _LOOK_EVERY_S
        try:
            count = len(partitions_at(self._open(), self._topic))
        except SourceUnavailable:
            return
        if 0 < self._partitions < count:
            self._on_note(
                f"{self._topic} has {count} partitions now, {self._partitions} when it was opened: begin again to read "
                "the new ones from their start"
            )
        self._partitions = count


ANSWER_S = 10.0
"""How long brokers may take to answer before a source counts as unavailable."""
_OURS = {
    "enable.auto.commit": False,  # the position is in the trainer's checkpoint
    "enable.partition.eof": True,  # tells the end of the partition from silence
    "auto.offset.reset": "error",  # the source counts messages deleted before they were read
    "queued.max.messages.kbytes": 16 * 1024,
    "log_level": 2,  # errors come back from calls
}


def partitions_of(config: Mapping[str, Any], topic: str) -> list[int]:
    """The numbers of a topic's partitions. SourceUnavailable; InputError without the extra or for a bad option."""
    consumer = consumer_of(config)
    try:
        return partitions_at(consumer, topic)
    finally:
        consumer.close()


def consumer_of(config: Mapping[str, Any], on_error: Callable[[KafkaError], None] | None = None) -> Consumer:
    """A consumer without assignment. Raises InputError without the extra or for a bad option."""
    try:
        from confluent_kafka import Consumer, KafkaException
    except ImportError as error:
        raise InputError(
            f"to read from Kafka, ftrie needs its extra `kafka`: {installing('kafka')}"
        ) from error
    callback = {} if on_error is None else {"error_cb": on_error}
    try:
        return Consumer({"group.id": "ftrie", **config, **_OURS, **callback})
    except KafkaException as error:
        raise InputError(f"a Kafka option is wrong: {error.args[0].str()}") from error


def partitions_at(consumer: Consumer, topic: str) -> list[int]:
    """The numbers of a topic's partitions. Raises SourceUnavailable, also if there is no such topic."""
    from confluent_kafka import KafkaException

    try:
        found = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
    except KafkaException as error:
        raise SourceUnavailable(f"kafka: {error.args[0].str()}; are the brokers there?") from error
    if found.error is not None or not found.partitions:
        reason = "it has no partitions" if found.error is None else found.error.str()
        raise SourceUnavailable(f"kafka topic {topic}: {reason}")
    return sorted(found.partitions)


SCHEME = "kafka://"
_FORM = "expected kafka://HOST:PORT,HOST:PORT/TOPIC?group=NAME&OPTION=VALUE"
_TAKEN = {
    "bootstrap.servers": "name the brokers before the topic",
    "group.id": "say group=NAME",
    "enable.auto.commit": "positions are kept in the trainer's checkpoints",
    "auto.offset.reset": "a topic is read from its beginning, and on from the checkpoint's position",
    "enable.partition.eof": "it is needed",
}


@dataclass(frozen=True)
class KafkaName:
    """A topic and how to reach it. config: options of librdkafka by its names."""

    topic: str
    config: dict[str, str]


def kafka_name(name: str) -> KafkaName:
    """Parse kafka://HOST:PORT,…/TOPIC?OPTION=VALUE. Raises InputError, without option values: they may be passwords."""
    parts = urlsplit(name)
    topic = unquote(parts.path.strip("/"))
    shown = f"{SCHEME}{parts.netloc.rpartition('@')[2]}{parts.path}"
    if not parts.netloc or not topic or "/" in topic or "@" in parts.netloc or parts.fragment:
        raise InputError(f"{shown}: {_FORM}")
    options: dict[str, str] = {}
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        options.update(_from_file(value) if key == "config" else {key: value})
    for key, instead in _TAKEN.items():
        if key in options:
            raise InputError(f"{shown}: the option {key} cannot be set: {instead}")
    if "group" in options:
        options["group.id"] = options.pop("group")
    return KafkaName(topic, {"bootstrap.servers": parts.netloc, **options})


def _from_file(path: str) -> dict[str, str]:
    """Lines of OPTION=VALUE; blank lines and those that start with # are skipped."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the file of Kafka options {path} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        key, equals, value = line.strip().partition("=")
        if line.strip() and not key.startswith("#"):
            if not equals:
                raise InputError(f"{path}:{number}: expected OPTION=VALUE")
            found[key.strip()] = value.strip()
    return found


def _openers(name: str, opening: Opening) -> Iterator[Opener]:
    topic, config = kafka_name(name).topic, kafka_name(name).config
    for number in partitions_of(config, topic):
        shown = f"kafka {topic}#{number}"

        def opened(position: SourcePosition, number: int = number, shown: str = shown) -> Source:
            return PartitionSource(shown, config, topic, number, position, opening.on_note, once=opening.once)

        yield Opener(shown, opened, may_be_new=True)


KAFKA = SourceKind(
    "kafka://HOST:PORT/TOPIC",
    lambda name: name.startswith(SCHEME),
    _openers,
    lambda name: f"kafka {kafka_name(name).topic}",
)
