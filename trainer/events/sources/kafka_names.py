"""What kafka://HOST:PORT,HOST:PORT/TOPIC?OPTION=VALUE means. Opens nothing but a file of options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from model_store.errors import InputError

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
