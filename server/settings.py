"""How a server runs: each setting declared once, with its flag of `ftrie serve`."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from model_store.errors import ServerError
from model_store.flags import Argument, Flag, StoreOption
from model_store.keys import check_model_name

DEFAULT_THREADS = 8
DEFAULT_STORE_BUDGET_S = 0.05
DEFAULT_USER_CACHE = 100_000
DEFAULT_USER_TTL_S = 60.0
LOOPBACK = "127.0.0.1"
MILLISECONDS = 1e-3
DAY_S = 86_400.0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`: an address, [::1] included, or a name, which is not looked up."""
    bare = host.strip("[]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def _seconds(help: str, min: float = 0.0) -> Flag:
    return Flag(help, "SECONDS", min)


def _port(help: str, default: int | None = None) -> Flag:
    return Flag(help, min=0, max=65535, default=default)


def _share(help: str) -> Flag:
    return Flag(help, "SHARE", 0.0, 1.0)


def _read(help: str) -> Flag:
    return Flag(help, "FILE", file="reads")


def _written(help: str) -> Flag:
    return Flag(help, "FILE", file="writes")


@dataclass(frozen=True)
class Settings:
    """How one server runs. JSON holds every field, so that a supervisor can hand it to its workers.

    Each field with a `Flag` is a flag of `ftrie serve`, in this order, named like the field without its unit. An empty
    text means none; port 0 takes a free port, and an optional port that is None is not opened.
    """

    models: Annotated[tuple[str, ...], Argument("The models' names.", "MODEL…")]
    store: StoreOption
    port: Annotated[int, _port("Where to listen; 0 takes a free port.", 50051)] = 0
    host: Annotated[str, Flag("Which interface; 0.0.0.0 for all: give --tls-cert and --tokens.")] = LOOPBACK
    workers: Annotated[int, Flag("Processes that answer, all on the same port.", min=1, max=256)] = 1
    threads: Annotated[int, Flag("Threads that answer calls, in each worker.", min=1, max=256)] = (
        DEFAULT_THREADS
    )
    drain_s: Annotated[float, _seconds("How long to finish calls on SIGTERM.")] = 10.0
    store_budget_s: Annotated[
        float,
        Flag("How long a request waits for the store, milliseconds.", "MS", min=1, unit=MILLISECONDS),
    ] = DEFAULT_STORE_BUDGET_S
    user_store: Annotated[str, Flag("Read users from another store, such as a replica.", "URL")] = ""
    user_cache: Annotated[
        int, Flag("Users that each worker caches for each model; 0 for none.", "N", min=0)
    ] = DEFAULT_USER_CACHE
    user_ttl_s: Annotated[float, _seconds("How long a cached user is not read again.")] = DEFAULT_USER_TTL_S
    state: Annotated[
        str,
        Flag(
            "Where the last good models are kept, to start from when the store is away. Default: a folder for the port "
            "in the user's cache; none with --port 0.",
            "DIR",
            file="writes",
        ),
    ] = ""
    alone_s: Annotated[
        float,
        _seconds("How long workers continue to serve when the supervisor has died and has no successor."),
    ] = 60.0
    connection_age_s: Annotated[
        float | None,
        _seconds(
            "When a client is asked to reconnect, so that another worker may take its calls, and that it looks up the "
            "server's name again; 0 never asks. Default: 300 with several workers, else 0."
        ),
    ] = None
    pin: Annotated[bool, Flag("Keep each worker on one core: faster if it has the core to itself.")] = False
    admin_port: Annotated[int | None, _port("Serve administration here (ftrie admin).")] = None
    admin_host: Annotated[str, Flag("Which interface for administration.")] = LOOPBACK
    shadow_log: Annotated[
        str, _written("Score shadow variants, and append what they would have answered.")
    ] = ""
    shadow_sample: Annotated[float, _share("Share of requests, chosen by request id.")] = 1.0
    feedback_length: Annotated[
        int, Flag("Clicks and conversions that a stream keeps, about.", "N", min=1)
    ] = 1_000_000
    feedback_age_s: Annotated[
        float, _seconds("The age at which a click or conversion is deleted.", min=1.0)
    ] = DAY_S
    impressions: Annotated[
        tuple[str, ...],
        Flag(
            "Log what is shown: store, redis://HOST:PORT or file:PATH; may be given several times.",
            "SINK",
            file="writes",
        ),
    ] = ()
    impressions_length: Annotated[int, Flag("Impressions that a stream keeps, about.", "N", min=1)] = (
        1_000_000
    )
    impressions_age_s: Annotated[
        float, _seconds("The age at which an impression is deleted from a stream.", min=1.0)
    ] = DAY_S
    impressions_queue: Annotated[
        int, Flag("Impressions that may wait in each worker, for each sink; more are dropped.", "N", min=1)
    ] = 10_000
    impressions_size_mib: Annotated[int, Flag("How large a file of impressions becomes.", "MIB", min=1)] = 256
    impressions_kept: Annotated[int, Flag("Full files of impressions that are kept.", "N", min=1)] = 8
    metrics_port: Annotated[int | None, _port("Serve /metrics and /healthz here.")] = None
    metrics_host: Annotated[str, Flag("Which interface for /metrics.")] = LOOPBACK
    max_concurrency: Annotated[
        int, Flag("Calls a worker takes at once; more are refused. Default: 32 a thread.", min=0)
    ] = 0
    tls_cert: Annotated[str, _read("Serve TLS with this certificate, PEM.")] = ""
    tls_key: Annotated[str, _read("The certificate's key, PEM.")] = ""
    tls_client_ca: Annotated[
        str, _read("Mutual TLS: accept clients whose certificate one of these authorities signed, PEM.")
    ] = ""
    tokens: Annotated[str, _read("TOML with the bearer tokens of each role; read again when it changes.")] = (
        ""
    )
    log_level: Annotated[str, Flag("debug, info, warning or error.")] = "info"
    access_log: Annotated[float, _share("Log this share of the answers.")] = 0.0
    traces: Annotated[str, Flag("Send OpenTelemetry traces to this OTLP endpoint (gRPC).", "URL")] = ""
    trace_share: Annotated[float, _share("Share of the calls whose caller has not decided.")] = 0.01
    record: Annotated[str, _written("Append requests here, for ftrie bench serve; it holds cookies.")] = ""
    record_share: Annotated[float, _share("Share of requests, drawn at random.")] = 1.0

    def __post_init__(self) -> None:
        """Raises UsageError for an invalid model name, ServerError for no model or one given twice."""
        # JSON gives lists.
        object.__setattr__(self, "models", tuple(self.models))
        object.__setattr__(self, "impressions", tuple(self.impressions))
        for name in self.models:
            check_model_name(name)
        if not self.models or len(set(self.models)) < len(self.models):
            raise ServerError(f"got the models {list(self.models)}; expected one or more different names")

    def to_json(self) -> dict[str, Any]:
        """Every field by its name."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Settings:
        """The settings that `to_json` returned. Raises ServerError for fields of another release of ftrie."""
        unknown = document.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise ServerError(
                f"got the settings {sorted(unknown)}, which this release of ftrie does not know"
            )
        return cls(**document)
