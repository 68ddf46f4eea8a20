"""Spans of a real server process, as an OpenTelemetry collector receives them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ftrie.api.client import Client, RankFailed
from model_store.store import Store
from tests.server import shop
from tests.server.serve.test_operated import serving
from tests.waiting import eventually


class Collector:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        export = grpc.unary_unary_rpc_method_handler(
            self.Export, ExportTraceServiceRequest.FromString, ExportTraceServiceResponse.SerializeToString
        )
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        handlers = grpc.method_handlers_generic_handler(service, {"Export": export})
        self.server = grpc.server(ThreadPoolExecutor(2), handlers=[handlers])
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.stop(0).wait()


def attributes(span: Span) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "") for pair in span.attributes}


@pytest.mark.slow
def test_calls_of_a_server_arrive_at_the_collector_when_it_has_ended_at_the_latest(
    shop_store: Store, store_url: str, collector: Collector
) -> None:
    flags = ("--traces", f"http://127.0.0.1:{collector.port}", "--trace-share", "1")
    with serving(store_url, *flags) as (address, _, _), Client(address, 20) as client:
        client.rank(cookie="u1", candidates=["item-1", "item-2"], request_id="r-1", variant="plain")
        with pytest.raises(RankFailed):
            client.rank(candidates=[])
    eventually(lambda: len(collector.spans) == 2)
    answered, refused = (attributes(span) for span in collector.spans)
    assert answered["ftrie.request_id"] == "r-1"
    assert (answered["ftrie.model"], answered["ftrie.candidates"]) == (shop.NAME, 2)
    assert answered["rpc.grpc.status_code"] == 0
    assert refused["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
