"""`ftrie admin`: the status of a running server, and reading the store at once, over its admin port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ftrie.command import Commands
from ftrie.commands.flags import ServerFlags
from ftrie.terminal import JsonOption, print_json, print_table
from model_store.flags import Argument, Flag

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

    from ftrie.api.admin import AdminClient

MOST_VARIANTS = 4
Plain = dict[str, Any]


@dataclass(frozen=True)
class AdminFlags(ServerFlags):
    """How to reach the admin port."""

    address: Annotated[str, Flag("The server's admin port.", "HOST:PORT")] = "127.0.0.1:50052"

    def client(self) -> AdminClient:
        """The client. Raises ServerError."""
        from ftrie.api.admin import AdminClient

        return AdminClient(self.address, self.timeout, self.access())


@dataclass(frozen=True)
class ReloadFlags(AdminFlags):
    """With time for a version to be loaded."""

    timeout: Annotated[float, Flag("How long to wait.", "SECONDS", min=0.001)] = 60.0


def status(
    server: AdminFlags,
    as_json: JsonOption = False,
) -> None:
    """Show the server, its models and its workers."""
    with server.client() as admin:
        answer = plain(admin.status())
    if as_json:
        print_json(answer)
        return
    doing = "draining" if answer["draining"] else "ready" if answer["ready"] else "not ready"
    print(f"{answer['address']}: {doing}\n")
    _print_models(answer["models"])
    print()
    print_table(
        ["worker", "pid", "state", "restarts", "serving"],
        [
            [
                w["index"],
                str(w["pid"]),
                w["state"],
                w["restart_count"],
                ", ".join(f"{name} {version}" for name, version in sorted(w["versions"].items())),
            ]
            for w in answer["workers"]
        ],
    )
    for model in answer["models"]:
        for problem in (model["problem"], model["disk_problem"], model["traffic_split"]["problem"]):
            if problem:
                print(f"{model['name']}: {problem}")


def reload(
    model: Annotated[str, Argument("The model's name.", "MODEL")],
    server: ReloadFlags,
    as_json: JsonOption = False,
) -> None:
    """Make this server read the store at once, and retry a version that it refused."""
    with server.client() as admin:
        reloaded = plain(admin.reload(model).model)
    if as_json:
        print_json(reloaded)
        return
    _print_models([reloaded])
    if reloaded["problem"]:
        print(f"{model}: {reloaded['problem']}")


def traffic(split: Plain) -> str:
    """The variants that answer together, or the first variants' shares; 32 do not fit into a table."""
    if split["interleave"]:
        return f"{'+'.join(split['interleave'])}, {split['draft']} draft"
    shares = split["shares"]
    first = ", ".join(f"{s['variant']} {s['share']:.1%}" for s in shares[:MOST_VARIANTS])
    return first if len(shares) <= MOST_VARIANTS else f"{first}, … {len(shares)} in all"


def _print_models(models: list[Plain]) -> None:
    print_table(
        ["model", "version", "kind", "published", "keys", "items", "from", "traffic"],
        [
            [
                m["name"],
                m["version"],
                m["kind"],
                m["publish_time"],
                m["key_count"],
                m["item_count"],
                m["source"] + (" (away)" if m["store_unavailable"] else ""),
                traffic(m["traffic_split"]),
            ]
            for m in models
        ],
    )


def plain(message: Message) -> Plain:
    """A message as JSON values, in the order of its fields; None for one that is absent.

    Other than in protobuf's own JSON, an int64 is a number, and an enum the word after its type's name.
    """
    from google.protobuf.json_format import MessageToDict

    made = MessageToDict(message, always_print_fields_with_no_presence=True, preserving_proto_field_name=True)
    return _fields(message.DESCRIPTOR, made)


def _fields(message: Any, made: Plain) -> Plain:
    """message: its descriptor, of Python's or of upb's type."""
    return {each.name: _native(each, made.get(each.name)) for each in message.fields}


def _native(field: FieldDescriptor, value: Any) -> Any:
    kind: Any = field.message_type
    if isinstance(value, list):
        return [_native(field, each) for each in value]
    if isinstance(value, dict) and kind.GetOptions().map_entry:
        return {key: _native(kind.fields_by_name["value"], each) for key, each in value.items()}
    if isinstance(value, dict):
        return _fields(kind, value)
    # protobuf writes 64 bits as text, since a number of JavaScript has 53.
    if field.cpp_type == field.CPPTYPE_INT64 and value is not None:
        return int(value)
    if field.enum_type is not None and isinstance(value, str):  # a number, if this ftrie does not know it
        unspecified = field.enum_type.values[0].name
        return (
            ""
            if value == unspecified
            else value.removeprefix(unspecified.removesuffix("UNSPECIFIED")).lower()
        )
    return value


admin = Commands(
    "admin",
    "Status of a running server (ftrie serve --admin-port).",
    ("Serve", 6),
    no_args_is_help=True,
)
admin.command("status", epilog="Example: ftrie admin status --address 127.0.0.1:50052")(status)
admin.command("reload", epilog="Example: ftrie admin reload ads")(reload)
