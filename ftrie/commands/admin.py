"""`ftrie admin`: the status of a running server and what it serves, over its admin port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrie.commands.flags import ServerFlags, grouped
from ftrie.terminal import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from ctr.v1 import admin_pb2 as pb
    from ftrie.client.admin import AdminClient

MOST_VARIANTS = 4
Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")]


@dataclass(frozen=True)
class AdminFlags(ServerFlags):
    """How to reach the admin port. Changes and reloads may take longer than status calls."""

    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server's admin port.")] = (
        "127.0.0.1:50052"
    )

    def client(self) -> AdminClient:
        """The client. Raises ServerError."""
        from ftrie.client.admin import AdminClient

        return AdminClient(self.address, self.timeout, self.access())


@dataclass(frozen=True)
class ChangeFlags(AdminFlags):
    """With time for a version's bytes to be verified."""

    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait.")] = 30.0


@dataclass(frozen=True)
class ReloadFlags(AdminFlags):
    """With time for a version to be loaded."""

    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait.")] = 60.0


def register(app: typer.Typer) -> None:
    """Add `ftrie admin`."""
    group = typer.Typer(
        name="admin",
        help="Status and versions of a running server (ftrie serve --admin-port).",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("status", epilog="Example: ftrie admin status --address 127.0.0.1:50052")(status)
    group.command("versions", epilog="Example: ftrie admin versions ads")(versions)
    group.command("activate", epilog="Example: ftrie admin activate ads 7")(activate)
    group.command("rollback", epilog="Example: ftrie admin rollback ads")(rollback)
    group.command("reload", epilog="Example: ftrie admin reload ads")(reload)
    app.add_typer(group)


@grouped
def status(
    server: AdminFlags,
    as_json: JsonOption = False,
) -> None:
    """Show the server, its models and its workers."""
    with server.client() as admin:
        answer = admin.status()
    if as_json:
        print_json(_plain(answer))
        return
    doing = "draining" if answer.draining else "ready" if answer.ready else "not ready"
    print(f"{answer.address}: {doing}\n")
    _print_models(answer.models)
    print()
    _print_workers(answer.workers)
    for model in answer.models:
        problems = (model.problem, model.disk_problem, model.traffic_split.problem)
        for problem in filter(None, problems):
            print(f"{model.name}: {problem}")


@grouped
def versions(
    model: Model,
    server: AdminFlags,
    as_json: JsonOption = False,
) -> None:
    """List the published versions of a model, oldest first."""
    with server.client() as admin:
        listed = list(admin.versions(model))
    if as_json:
        print_json([_plain(each) for each in listed])
        return
    print_table(
        ["version", "kind", "active", "published", "rows", "bytes", "sha256"],
        [
            [
                v.version,
                _enum(v, "kind"),
                "active" if v.active else "",
                _time(v.publish_time),
                v.row_count,
                v.size_bytes,
                v.sha256[:12],
            ]
            for v in listed
        ],
    )


@grouped
def activate(
    model: Model,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The version to serve.")],
    server: ChangeFlags,
    as_json: JsonOption = False,
) -> None:
    """Verify a version's bytes and make all servers of the model serve it."""
    with server.client() as admin:
        answer = admin.activate(model, version)
    _say_active(model, answer, as_json)


@grouped
def rollback(
    model: Model,
    server: ChangeFlags,
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", min=1, help="Default: the previously active version.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Activate the previously active version, or VERSION."""
    with server.client() as admin:
        answer = admin.roll_back(model, version)
    _say_active(model, answer, as_json)


@grouped
def reload(
    model: Model,
    server: ReloadFlags,
    as_json: JsonOption = False,
) -> None:
    """Make this server read the store at once, and retry a version that it refused."""
    with server.client() as admin:
        answer = admin.reload(model)
    if as_json:
        print_json(_plain(answer)["model"])
        return
    _print_models([answer.model])
    if answer.model.problem:
        print(f"{model}: {answer.model.problem}")


def traffic(shares: Any) -> str:
    """The first variants' shares; 32 do not fit into a table."""
    first = ", ".join(f"{s.variant} {s.share:.1%}" for s in shares[:MOST_VARIANTS])
    return first if len(shares) <= MOST_VARIANTS else f"{first}, … {len(shares)} in all"


def _print_models(models: Any) -> None:
    print_table(
        ["model", "version", "kind", "published", "keys", "items", "from", "traffic"],
        [
            [
                m.name,
                m.version if m.HasField("version") else None,
                _enum(m, "kind"),
                _time(m.publish_time) if m.HasField("publish_time") else None,
                m.key_count,
                m.item_count,
                _enum(m, "source") + (" (away)" if m.store_unavailable else ""),
                traffic(m.traffic_split.shares),
            ]
            for m in models
        ],
    )


def _print_workers(workers: Any) -> None:
    print_table(
        ["worker", "pid", "state", "restarts", "serving"],
        [
            [
                w.index,
                str(w.pid),
                _enum(w, "state"),
                w.restart_count,
                ", ".join(f"{name} {version}" for name, version in sorted(w.versions.items())),
            ]
            for w in workers
        ],
    )


def _say_active(model: str, answer: pb.ActivateVersionResponse | pb.RollBackResponse, as_json: bool) -> None:
    previous = answer.previous_version if answer.HasField("previous_version") else None
    if as_json:
        print_json({"model": model, "active": answer.version, "before": previous})
    else:
        print(f"{model}: version {answer.version} is active" + (f" (before: {previous})" if previous else ""))


def _plain(message: Any) -> dict[str, Any]:
    """A message in JSON's types: enums as words, times as ISO-8601, absent fields as None."""
    return {field.name: _plain_field(message, field) for field in message.DESCRIPTOR.fields}


def _plain_field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_plain(each) if field.message_type else each for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.enum_type is not None:
        return _enum(message, field.name)
    if field.message_type is not None:
        return _time(value) if field.message_type.name == "Timestamp" else _plain(value)
    return value


def _enum(message: Any, name: str) -> str:
    """The word of an enum's value: "serving" of WORKER_STATE_SERVING."""
    kind = message.DESCRIPTOR.fields_by_name[name].enum_type
    names: Mapping[int, str] = {number: value.name for number, value in kind.values_by_number.items()}
    unspecified = names[0].removesuffix("UNSPECIFIED")
    word = names[getattr(message, name)].removeprefix(unspecified).lower()
    return "" if word == "unspecified" else word


def _time(stamp: Any) -> str:
    text: str = stamp.ToJsonString()
    return text
