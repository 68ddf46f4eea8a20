"""`ftrie admin`: how a running server is, and what it is to serve, from anywhere that reaches its admin port.

Flags and output only; the calls are `ftrie.client.admin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrie.commands.flags import AddressOption, TlsCaOption, TlsCertOption, TlsKeyOption, TokenOption
from ftrie.terminal import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctr.v1 import admin_pb2 as pb
    from ftrie.client.admin import AdminClient

DEFAULT_ADDRESS = "127.0.0.1:50052"
MOST_VARIANTS = 4
Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")]
TimeoutOption = Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait.")]


def register(app: typer.Typer) -> None:
    """Add `ftrie admin`."""
    group = typer.Typer(
        name="admin",
        help="Ask a running server how it is, and tell it what to serve (ftrie serve --admin-port).",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("status", epilog="Example: ftrie admin status --address 127.0.0.1:50052")(status)
    group.command("versions", epilog="Example: ftrie admin versions ads")(versions)
    group.command("activate", epilog="Example: ftrie admin activate ads 7")(activate)
    group.command("rollback", epilog="Example: ftrie admin rollback ads")(rollback)
    group.command("reload", epilog="Example: ftrie admin reload ads")(reload)
    app.add_typer(group)


def status(
    address: AddressOption = DEFAULT_ADDRESS,
    timeout: TimeoutOption = 5.0,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the server, its models and its workers."""
    with _client(address, timeout, tls_ca, tls_cert, tls_key, token) as admin:
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
        problems = (model.problem, model.disk_problem, model.division.problem)
        for problem in filter(None, problems):
            print(f"{model.name}: {problem}")


def versions(
    model: Model,
    address: AddressOption = DEFAULT_ADDRESS,
    timeout: TimeoutOption = 5.0,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the published versions of a model, oldest first."""
    with _client(address, timeout, tls_ca, tls_cert, tls_key, token) as admin:
        answer = admin.versions(model)
    if as_json:
        print_json(_plain(answer)["versions"])
        return
    print_table(
        ["version", "kind", "active", "published", "rows", "bytes", "sha256"],
        [
            [
                v.version,
                v.kind,
                "active" if v.active else "",
                _time(v.published),
                v.rows,
                v.bytes,
                v.sha256[:12],
            ]
            for v in answer.versions
        ],
    )


def activate(
    model: Model,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The version to serve.")],
    address: AddressOption = DEFAULT_ADDRESS,
    timeout: TimeoutOption = 30.0,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make all servers of a model serve a version, after its bytes were verified."""
    with _client(address, timeout, tls_ca, tls_cert, tls_key, token) as admin:
        answer = admin.activate(model, version)
    _say_active(model, answer, as_json)


def rollback(
    model: Model,
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", min=1, help="By default what was active before.")
    ] = None,
    address: AddressOption = DEFAULT_ADDRESS,
    timeout: TimeoutOption = 30.0,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Go back to the version that was active before, or to VERSION."""
    with _client(address, timeout, tls_ca, tls_cert, tls_key, token) as admin:
        answer = admin.roll_back(model, version)
    _say_active(model, answer, as_json)


def reload(
    model: Model,
    address: AddressOption = DEFAULT_ADDRESS,
    timeout: TimeoutOption = 60.0,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let this server look at the store at once, also at a version that it refused a moment ago."""
    with _client(address, timeout, tls_ca, tls_cert, tls_key, token) as admin:
        answer = admin.reload(model)
    if as_json:
        print_json(_plain(answer)["model"])
        return
    _print_models([answer.model])
    if answer.model.problem:
        print(f"{model}: {answer.model.problem}")


@contextmanager
def _client(
    address: str, timeout: float, tls_ca: str, tls_cert: str, tls_key: str, token: str
) -> Iterator[AdminClient]:
    from ftrie.client.access import Access
    from ftrie.client.admin import AdminClient

    with AdminClient(address, timeout, Access(tls_ca, tls_cert, tls_key, token)) as admin:
        yield admin


def traffic(shares: Any) -> str:
    """The first variants' shares; a table has no room for 32."""
    first = ", ".join(f"{s.variant} {s.share:.1%}" for s in shares[:MOST_VARIANTS])
    return first if len(shares) <= MOST_VARIANTS else f"{first}, … {len(shares)} in all"


def _print_models(models: Any) -> None:
    print_table(
        ["model", "version", "kind", "published", "keys", "items", "from", "traffic"],
        [
            [
                m.name,
                m.version if m.HasField("version") else None,
                m.kind,
                _time(m.published) if m.HasField("published") else None,
                m.keys,
                m.items,
                _enum(m, "source") + (" (away)" if m.store_away else ""),
                traffic(m.division.shares),
            ]
            for m in models
        ],
    )


def _print_workers(workers: Any) -> None:
    print_table(
        ["worker", "pid", "state", "restarts", "serving"],
        [
            [
                w.number,
                str(w.pid),
                _enum(w, "state"),
                w.restarts,
                ", ".join(f"{name} {version}" for name, version in sorted(w.versions.items())),
            ]
            for w in workers
        ],
    )


def _say_active(model: str, answer: pb.ActivateVersionResponse | pb.RollBackResponse, as_json: bool) -> None:
    before = answer.before if answer.HasField("before") else None
    if as_json:
        print_json({"model": model, "active": answer.version, "before": before})
    else:
        print(f"{model}: version {answer.version} is active" + (f" (before: {before})" if before else ""))


def _plain(message: Any) -> dict[str, Any]:
    """A message in JSON's types: numbers as numbers, enums as words, times as ISO-8601, None for what is absent."""
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
