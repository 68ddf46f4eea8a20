"""`ftrie serve`: flags and output of the server. Its flags are the fields of `server.settings.Settings`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from ftrie.terminal import DEFAULT_STORE, JsonOption, StoreOption, print_json
from model_store.errors import listed
from server.settings import Flag, Settings

if TYPE_CHECKING:
    from server.telemetry.status import SupervisorStatus

CONNECTION_AGE_S = 300.0
"""By default, where there is another worker to move to."""
_UNITS = ("_s", "_mib")
_TEXTS = list[str] | None


def register(app: typer.Typer) -> None:
    """Add `ftrie serve`."""
    app.command("serve", epilog="Example: ftrie serve ads --port 50051 --workers 2")(command())


def command() -> Callable[..., None]:
    """`serve` as typer reads it: with one parameter for each setting."""
    option: dict[str, Any] = {"kind": Parameter.KEYWORD_ONLY}
    names = Annotated[list[str], typer.Argument(metavar="MODEL…", help="The models' names.")]
    parameters = [
        Parameter("models", annotation=names, **option),
        Parameter("store", annotation=StoreOption, default=DEFAULT_STORE, **option),
        *(
            Parameter(_flag_name(name), annotation=_annotation(name, kind, flag), default=default, **option)
            for name, kind, flag, default in _settings()
        ),
        Parameter("as_json", annotation=JsonOption, default=False, **option),
    ]

    def run(*, models: list[str], store: str, as_json: bool, **flags: Any) -> None:
        given = {name: _value(flags[_flag_name(name)], flag) for name, _, flag, _ in _settings()}
        serve(models, store, given, as_json)

    run.__doc__ = serve.__doc__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # typer reads it and the annotations
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def serve(models: list[str], store: str, flags: dict[str, Any], as_json: bool) -> None:
    """Serve published models over gRPC, and follow their active versions.

    Prints one line when every worker serves every model that has a version. SIGTERM or Ctrl-C ends it once its calls
    have ended, a second at once.
    """
    from server.processes.supervisor import Supervisor
    from server.telemetry.log import LEVELS, log_to_stderr

    def say_ready(status: SupervisorStatus) -> None:
        versions = {model.name: model.version for model in status.models}
        if as_json:
            name, version = next(iter(versions.items()))
            print_json(
                {
                    "model": name,
                    "version": version,
                    "models": versions,
                    "address": status.address,
                    "workers": len(status.workers),
                    "not_served": status.not_served,
                }
            )
        else:
            missing = status.not_served
            served = ", ".join(
                f"{name} version {version}" for name, version in versions.items() if name not in missing
            )
            lacks = "".join(f"; NOT SERVED: {name} ({why})" for name, why in missing.items())
            print(f"serving {served} on {status.address}{lacks}", flush=True)

    if flags["log_level"] not in LEVELS:
        raise typer.BadParameter(
            f"--log-level: got {flags['log_level']!r}, expected one of {listed(LEVELS, flags['log_level'])}"
        )
    log_to_stderr(flags["log_level"])
    flags["impressions"] = tuple(flags["impressions"] or ())
    flags["state"] = flags["state"] or str(default_state(flags["host"], flags["port"]) or "")
    if flags["connection_age_s"] is None:
        flags["connection_age_s"] = CONNECTION_AGE_S if flags["workers"] > 1 else 0.0
    Supervisor(Settings(tuple(models), store, **flags), say_ready).run()


def default_state(host: str, port: int) -> Path | None:
    """A folder for this address in the user's cache; None for a port that differs with each start."""
    if not port:
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "ftrie" / "serve" / f"{host.strip('[]').replace(':', '_')}-{port}"


def _settings() -> Iterator[tuple[str, Any, Flag, Any]]:
    """Of each setting that is a flag: name, type, flag, and the flag's default."""
    hints = get_type_hints(Settings, include_extras=True)
    for field in fields(Settings):
        flag = next((each for each in get_args(hints[field.name]) if isinstance(each, Flag)), None)
        if flag is not None:
            kind = get_args(hints[field.name])[0]
            default: Any = field.default if flag.default is None else flag.default
            if flag.unit is not None:
                default = round(default / flag.unit)
            yield field.name, kind, flag, (None if default == () else default)


def _flag_name(setting: str) -> str:
    return next((setting.removesuffix(unit) for unit in _UNITS if setting.endswith(unit)), setting)


def _annotation(name: str, kind: Any, flag: Flag) -> Any:
    names = [f"--{_flag_name(name).replace('_', '-')}"] if kind is bool else []  # without --no-…
    found = typer.Option(*names, help=flag.help, metavar=flag.metavar, min=flag.min, max=flag.max)
    if kind == tuple[str, ...]:
        kind = _TEXTS
    return Annotated[int if flag.unit is not None else kind, found]


def _value(given: Any, flag: Flag) -> Any:
    """A flag's value as the setting's."""
    if flag.unit is not None:
        return given * flag.unit
    return given
