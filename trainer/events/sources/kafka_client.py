"""A client of Kafka brokers, and what a topic has. Needs the extra `kafka`, which is imported when one is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from model_store.errors import InputError, SourceUnavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

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
