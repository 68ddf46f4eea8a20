"""Traces, recording and the access log, around a real gRPC service: what they hold, and what they never hold."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ctr.v1.ranking_pb2 import RankRequest
from model_store.errors import OutputError
from server.errors import Degradation
from server.serve.observers import Observers, Recorded, Recorder
from server.serve.ranking_service import RANK
from server.settings import Settings
from server.telemetry.meter import Meter
from server.telemetry.tracing import Traced, note_answer
from tests.server import echo

ROOT = Path(__file__).resolve().parents[3]
DEGRADED = Degradation.left_out("user_features", "age: got 'secret'")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Ranking:
    """Answers, fails with a status, or breaks, as the request's model says."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        rank = grpc.unary_unary_rpc_method_handler(self.Rank, RankRequest.FromString)
        return grpc.method_handlers_generic_handler("ctr.v1.RankingService", {"Rank": rank})

    def Rank(self, request: RankRequest, context: grpc.ServicerContext) -> bytes:
        if request.model:
            context.abort(getattr(grpc.StatusCode, request.model), "as asked")
        self.meter.answered("shop", 7, "plain", 200, 0, 1, 2, [DEGRADED], request.request_id)
        return b""


@pytest.fixture
def meter() -> Meter:
    return Meter()


def call(handlers: grpc.GenericRpcHandler[Any, Any], request: bytes, **options: Any) -> grpc.StatusCode:
    with echo.serving(handlers) as address, grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(RANK)(request, timeout=20, **options)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


Spans = tuple[TracerProvider, InMemorySpanExporter]


@pytest.fixture
def spans() -> Iterator[Spans]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def test_a_call_is_a_span_below_its_caller_s_and_says_what_answered(meter: Meter, spans: Spans) -> None:
    provider, exporter = spans
    meter.listeners += (note_answer,)
    request = RankRequest(request_id="r1", cookie="secret", item_ids=["secret"])
    metadata = (("traceparent", f"00-{TRACE}-{SPAN}-01"),)
    handlers = Traced(Ranking(meter).handlers(), provider)
    assert call(handlers, request.SerializeToString(), metadata=metadata) is grpc.StatusCode.OK
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind) == ("ctr.v1.RankingService/Rank", SpanKind.SERVER)
    assert span.context is not None and span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert dict(span.attributes or {}) == {
        "rpc.system": "grpc",
        "rpc.service": "ctr.v1.RankingService",
        "rpc.method": "Rank",
        "rpc.grpc.status_code": 0,
        "ftrie.request_id": "r1",
        "ftrie.model": "shop",
        "ftrie.version": 7,
        "ftrie.variant": "plain",
        "ftrie.candidates": 200,
        "ftrie.degraded": ("user_features",),
    }
    assert "secret" not in span.to_json()


def test_a_span_is_an_error_where_the_server_is_to_blame(meter: Meter, spans: Spans) -> None:
    provider, exporter = spans
    for status, outcome in (("INVALID_ARGUMENT", StatusCode.UNSET), ("UNAVAILABLE", StatusCode.ERROR)):
        request = RankRequest(model=status).SerializeToString()
        code = call(Traced(Ranking(meter).handlers(), provider), request)
        span = exporter.get_finished_spans()[-1]
        assert code.name == status
        assert (span.attributes or {})["rpc.grpc.status_code"] == code.value[0]
        assert span.status.status_code is outcome
        assert span.events == ()


@pytest.mark.slow
def test_nothing_of_opentelemetry_is_imported_unless_traces_are_asked_for() -> None:
    script = (
        "import sys; from server.serve.observers import Observers; from server.telemetry.meter import Meter\n"
        "from server.settings import Settings; import server.serve.grpc_server\n"
        "Observers(Settings(('shop',), 'unix:///nowhere'), Meter())\n"
        # redis-py looks for OpenTelemetry's metrics on its own account.
        "ours = 'opentelemetry.sdk.trace', 'opentelemetry.exporter', 'server.telemetry.tracing'\n"
        "print([name for name in sys.modules if name.startswith(ours)])"
    )
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "PATH": "/usr/bin:/bin"}
    finished = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=path, capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == "[]"


def test_recorded_requests_are_json_lines_that_only_their_owner_reads(meter: Meter, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    recorder = Recorder(str(path), 1.0)
    handlers = Recorded(Ranking(meter).handlers(), RANK, recorder)
    request = RankRequest(cookie="ü", item_ids=["a", "b"], top_k=3)
    request.context.values["distance"].number = 2.5
    assert call(handlers, request.SerializeToString()) is grpc.StatusCode.OK
    assert call(handlers, b"\xff") is grpc.StatusCode.INTERNAL  # which this test's service does not look for
    recorder.close()
    (line,) = path.read_text("utf-8").splitlines()
    assert json.loads(line)["request"] == {
        "cookie": "ü",
        "item_ids": ["a", "b"],
        "top_k": 3,
        "context": {"values": {"distance": {"number": 2.5}}},
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_disk_ends_a_recording_and_a_file_that_is_none_is_refused(
    meter: Meter, tmp_path: Path
) -> None:
    recorder = Recorder("/dev/full", 1.0)
    handlers = Recorded(Ranking(meter).handlers(), RANK, recorder)
    with structlog.testing.capture_logs() as logs:
        assert call(handlers, b"") is grpc.StatusCode.OK
        recorder.close()
        assert call(handlers, b"") is grpc.StatusCode.OK
    assert [entry["event"] for entry in logs] == ["recording ends"]
    with pytest.raises(OutputError, match="cannot write requests to .*: No such file"):
        Recorder(str(tmp_path / "no folder" / "requests.jsonl"), 1.0)


def test_the_access_log_names_the_request_and_quotes_nothing_of_it(meter: Meter) -> None:
    plain = Ranking(meter).handlers()
    assert Observers(Settings(("shop",), "unix:///nowhere"), meter).around(plain) is plain  # without it
    assert meter.listeners == ()
    observers = Observers(Settings(("shop",), "unix:///nowhere", access_log=1.0), meter)
    handlers = observers.around(Ranking(meter).handlers())
    with structlog.testing.capture_logs() as logs:
        call(handlers, RankRequest(request_id="r9", cookie="secret").SerializeToString())
    observers.close()
    (line,) = logs
    assert line.pop("ms") > 0
    assert line == {
        "event": "answered",
        "log_level": "info",
        "request_id": "r9",
        "model": "shop",
        "version": 7,
        "variant": "plain",
        "candidates": 200,
        "degraded": ["user_features"],
    }
