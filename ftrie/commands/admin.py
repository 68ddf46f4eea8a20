"""`ftrie admin`: the status of a running server, and reading the store at once, over its admin port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ftrie.command import Commands
from ftrie.commands.flags import ServerFlags
from ftrie.terminal import JsonOption, print_json, print_table
from model_store.flags import Argument, Flag

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ftrie.client.admin import AdminClient

MOST_VARIANTS = 4
Plain = dict[str, Any]


@dataclass(frozen=True)
class AdminFlags(ServerFlags):
    """How to reach the admin port."""

    address: Annotated[str, Flag("The server's admin port.", "HOST:PORT")] = "127.0.0.1:50052"

    def client(self) -> AdminClient:
        """The client. Raises ServerError."""
        from ftrie.client.admin import AdminClient

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
    answer["models"] = [_with_absent(model) for model in answer["models"]]
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
        reloaded = _with_absent(plain(admin.reload(model).model))
    if as_json:
        print_json(reloaded)
        return
    _print_models([reloaded])
    if reloaded["problem"]:
        print(f"{model}: {reloaded['problem']}")


def traffic(shares: list[Plain]) -> str:
    """The first variants' shares; 32 do not fit into a table."""
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
                traffic(m["traffic_split"]["shares"]),
            ]
            for m in models
        ],
    )


def _with_absent(model: Plain) -> Plain:
    """A model's status, with None for what is absent before a version is loaded."""
    return {"version": None, "publish_time": None, "serve_start_time": None, **model}


INT64 = ("version", "key_count", "item_count", "revision")
INT64_MAPS = ("versions", "refusal_counts")
ENUMS = {"kind": "VERSION_KIND_", "source": "MODEL_SOURCE_", "state": "WORKER_STATE_"}


def plain(message: Message) -> Plain:
    """A message as JSON values. Other than in protobuf's own JSON, an int64 is a number and an enum a word."""
    from google.protobuf.json_format import MessageToDict

    def native(name: str, value: Any) -> Any:
        if name in INT64:
            return int(value)
        if name in INT64_MAPS:
            return {key: int(number) for key, number in value.items()}
        if name in ENUMS:
            return value.removeprefix(ENUMS[name]).lower().removeprefix("unspecified")
        if isinstance(value, list):
            return [native(name, each) for each in value]
        return {key: native(key, each) for key, each in value.items()} if isinstance(value, dict) else value

    found = MessageToDict(
        message, always_print_fields_with_no_presence=True, preserving_proto_field_name=True
    )
    return {name: native(name, value) for name, value in found.items()}


admin = Commands(
    "admin",
    "Status of a running server (ftrie serve --admin-port).",
    ("Serve", 6),
    no_args_is_help=True,
)
admin.command("status", epilog="Example: ftrie admin status --address 127.0.0.1:50052")(status)
admin.command("reload", epilog="Example: ftrie admin reload ads")(reload)
