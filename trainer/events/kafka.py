"""One partition of a Kafka topic as a source. Needs the extra `kafka`, which is imported when one is opened.

The partition is assigned by hand and read from the offset in the place: what a consumer group has committed decides
nothing. Messages come by their timestamps, which may not fall: one that is older than the one before counts as new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np

from model_store.errors import InputError, SourceUnavailable
from trainer.events.events import NEVER_US, READ_EVENTS, Lag, Place, Stretch, lines_of, on_one_line

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message


_COMMIT_EVERY_S = 5.0
_LOOK_EVERY_S = 60.0


class PartitionSource:
    """Reads one partition on from a place; see Source for the methods. Marks are the offsets behind each message.

    Messages without a value are passed over. group, in the config, is told every few seconds what was read, for those
    who watch it; nothing is read from it.
    """

    def __init__(
        self,
        name: str,
        config: Mapping[str, Any],
        topic: str,
        partition: int,
        place: Place,
        on_note: Callable[[str], None],
        *,
        once: bool = False,
    ) -> None:
        self.name = name
        self.lost = int(place.get("lost", 0))
        self._on_note = on_note
        self._topic, self._partition = topic, partition
        self._once = once
        self._commits = "group.id" in config
        self._offset: int | None = place.get("offset")
        self._floor_us = int(place.get("floor_us", 0))
        self._at_end = self._ended = False
        self._trouble: str | None = None
        self._news: KafkaError | None = None
        self._next_commit_s = self._next_look_s = time.monotonic()
        self._partitions = 0
        self._consumer: Consumer | None = consumer_of(config, self._on_error)
        self._assign()
        self.start = self._place()

    def read(self) -> Stretch | None:
        """The next messages, at most READ_EVENTS. Waits only until the brokers have said that there are none.

        Raises SourceUnavailable if they do not answer within kafka_client.ANSWER_S, or with an error.
        """
        if self._ended:
            return None
        self._check()
        until = time.monotonic() + ANSWER_S
        while True:
            rest = until - time.monotonic()
            stretch = self._stretch(self._open().consume(READ_EVENTS, 0 if self._at_end else min(0.2, rest)))
            if stretch is not None:
                return stretch
            if self._at_end:
                self._ended = self._once
                return None
            self._check()
            if rest <= 0:
                raise SourceUnavailable(f"{self.name}: the brokers sent nothing within {ANSWER_S:.0f} s")

    def frontier_us(self) -> int:
        """The greatest timestamp so far; NEVER_US once all was read and nothing is waited for."""
        return NEVER_US if self._ended else self._floor_us

    def place(self, stretch: Stretch, count: int) -> Place:
        """The place behind `count` messages of the stretch."""
        if count == 0:
            return stretch.before
        assert stretch.arrived_us is not None
        return {
            **stretch.before,
            "offset": int(stretch.marks[count - 1, 0]),
            "floor_us": int(stretch.arrived_us[count - 1]),
        }

    def where(self, stretch: Stretch, number: int) -> str:
        """The message's offset in the partition."""
        return str(int(stretch.marks[number, 0]) - 1)

    def lag(self) -> Lag:
        """Messages up to the end of the partition, as it was last told; the last one read is older than all of them."""
        consumer = self._open()
        _, high = consumer.get_watermark_offsets(self._topic_partition(), cached=True)
        self._look_for_partitions()
        if high < 0 or self._offset is None:
            return Lag()
        events = max(0, high - self._offset)
        return Lag(events=events, seconds=max(0.0, time.time() - self._floor_us / 1e6) if events else 0.0)

    def holds(self) -> str:
        """Up to which offset there are messages; see Source."""
        consumer = self._consumer
        high = (
            -1
            if consumer is None
            else consumer.get_watermark_offsets(self._topic_partition(), cached=True)[1]
        )
        there = f"has messages up to offset {high:,}" if high >= 0 else "has not answered yet"
        return f"{self.name} {there}, read to offset {self._offset or 0:,}"

    def close(self) -> None:
        """Leave the brokers. May be called twice."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def _open(self) -> Consumer:
        if self._consumer is None:
            raise SourceUnavailable(f"{self.name}: is closed")
        return self._consumer

    def _place(self) -> Place:
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
        """Called by the client from within `consume`; what a single broker has is mended by the others."""
        from confluent_kafka import KafkaError

        if error.fatal() or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION):
            self._trouble = error.str()

    def _stretch(self, messages: Sequence[Message]) -> Stretch | None:
        """The messages that have a value; what is not a message but news of the partition is looked at by `_check`."""
        from confluent_kafka import KafkaError

        before = self._place()
        payloads, marks, arrived = [], [], []
        for message in messages:
            error = message.error()
            if error is not None:
                self._at_end = error.code() == KafkaError._PARTITION_EOF
                self._news = None if self._at_end else error
                continue
            self._at_end, self._trouble = False, None
            offset = self._offset = (message.offset() or 0) + 1
            kind, ms = message.timestamp()
            self._floor_us = max(self._floor_us, ms * 1000 if kind else 0)
            if (value := message.value()) is not None:
                payloads.append(on_one_line(value))
                marks.append(offset)
                arrived.append(self._floor_us)
        if not payloads:
            return None
        self._commit()
        return Stretch(
            *lines_of(payloads), np.array(arrived, np.int64), np.array(marks, np.int64)[:, None], before
        )

    def _find_again(self) -> None:
        """The offset is not in the partition: its messages were deleted, or the topic was made anew."""
        low, high = self._watermarks()
        if self._offset is not None and self._offset < low:
            self.lost += low - self._offset
            self._on_note(
                f"{self.name}: {low - self._offset:,} messages were deleted before they were read; let the topic keep "
                "them longer (retention.ms, retention.bytes), or give the trainer more of the machine"
            )
        elif self._offset is not None:
            self._on_note(
                f"{self.name} ends at offset {high:,} though it was read up to {self._offset:,}: the topic was made "
                "anew, or a broker lost its end; read from its start"
            )
        self._offset = low
        self._assign()

    def _check(self) -> None:
        """Raise SourceUnavailable while the brokers are away; the client does not say when they are back, so ask."""
        from confluent_kafka import KafkaError

        news = self._news
        if news is not None and news.code() in (
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError.OFFSET_OUT_OF_RANGE,
        ):
            self._find_again()
        elif news is not None:
            self._trouble = news.str()
        self._news = None
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
        """Say once, for all partitions of the topic, if it has more than are read."""
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


# --- A client of Kafka brokers, and what a topic has. Needs the extra `kafka`, which is imported when one is
# made ---


ANSWER_S = 10.0
"""How long brokers may take to answer before a source counts as away."""
_OURS = {
    "enable.auto.commit": False,  # the place is in the trainer's checkpoint
    "enable.partition.eof": True,  # so that an empty answer is known from none
    "auto.offset.reset": "error",  # what was deleted unread is counted by the source
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
    """A consumer to which nothing is assigned. Raises InputError without the extra or for a bad option."""
    try:
        from confluent_kafka import Consumer, KafkaException
    except ImportError as error:
        raise InputError(
            'to read from Kafka, ftrie needs its extra `kafka`: pip install "ftrie[kafka]"'
        ) from error
    callback = {} if on_error is None else {"error_cb": on_error}
    try:
        return Consumer({"group.id": "ftrie", **config, **_OURS, **callback})
    except KafkaException as error:
        raise InputError(f"a Kafka option is wrong: {error.args[0].str()}") from error


def partitions_at(consumer: Consumer, topic: str) -> list[int]:
    """The numbers of a topic's partitions. Raises SourceUnavailable, also where there is no such topic."""
    from confluent_kafka import KafkaException

    try:
        found = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
    except KafkaException as error:
        raise SourceUnavailable(f"kafka: {error.args[0].str()}; are the brokers there?") from error
    if found.error is not None or not found.partitions:
        reason = "it has no partitions" if found.error is None else found.error.str()
        raise SourceUnavailable(f"kafka topic {topic}: {reason}")
    return sorted(found.partitions)


# --- What kafka://HOST:PORT,HOST:PORT/TOPIC?OPTION=VALUE means. Opens nothing but a file of options ---


SCHEME = "kafka://"
_FORM = "expected kafka://HOST:PORT,HOST:PORT/TOPIC?group=NAME&OPTION=VALUE"
_TAKEN = {
    "bootstrap.servers": "name the brokers before the topic",
    "group.id": "say group=NAME",
    "enable.auto.commit": "places are kept in the trainer's checkpoints",
    "auto.offset.reset": "a topic is read from its beginning, and on from the checkpoint's place",
    "enable.partition.eof": "it is needed",
}


@dataclass(frozen=True)
class KafkaName:
    """A topic and how to reach it. config: options of librdkafka by its names."""

    topic: str
    config: dict[str, str]


def kafka_name(name: str) -> KafkaName:
    """Understand a name. Raises InputError, never with the value of an option, which may be a password."""
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
    """Lines of OPTION=VALUE; those that are blank or begin with # are passed over."""
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
