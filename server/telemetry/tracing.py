"""OpenTelemetry traces: one span for each sampled call, a child of the caller's span. Imported only with --traces.

A span holds the model, version, variant, counts, times and the request's id; never a cookie, item or feature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from model_store.errors import ServerError, installing

try:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    from opentelemetry.trace import SpanKind, Status, StatusCode, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ServerError(f"--traces needs OpenTelemetry: {installing('otel')}") from error

from server.telemetry.meter import Answered

OURS = frozenset(
    (
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    )
)
"""The status codes that OpenTelemetry's conventions for RPC count as the server's fault."""

Behaviour = Callable[[Any, grpc.ServicerContext], Any]


def provider(endpoint: str, share: float) -> TracerProvider:
    """Sends spans to an OTLP collector (http://HOST:4317), in batches from a thread of its own; end it with `shutdown`.

    share: of the calls whose caller has not decided, from 0 to 1.
    """
    made = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(share)), resource=Resource.create({"service.name": "ftrie"})
    )
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return made


def note_answer(answer: Answered) -> None:
    """A listener of the meter: what was answered goes on the call's span."""
    get_current_span().set_attributes(
        {
            "ftrie.request_id": answer.request_id,
            "ftrie.model": answer.model,
            "ftrie.version": answer.version,
            "ftrie.variant": answer.variant,
            "ftrie.candidates": answer.candidates,
            "ftrie.degraded": [each.part for each in answer.degraded],
        }
    )


class Traced(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    """Handlers that make a span of each unary call; there are no other calls."""

    def __init__(self, handlers: grpc.GenericRpcHandler[Any, Any], spans: TracerProvider) -> None:
        self._handlers = handlers
        self._tracer = spans.get_tracer("ftrie")
        self._propagator = TraceContextTextMapPropagator()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler, traced."""
        handler = self._handlers.service(details)
        if handler is None or handler.unary_unary is None:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            self._traced(details.method, handler.unary_unary),
            handler.request_deserializer,
            handler.response_serializer,
        )

    def _traced(self, method: str, behaviour: Behaviour) -> Behaviour:
        service, _, name = method.lstrip("/").partition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            metadata = {
                key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)
            }
            with self._tracer.start_as_current_span(
                f"{service}/{name}",
                context=self._propagator.extract(metadata),
                kind=SpanKind.SERVER,
                attributes=attributes,
                record_exception=False,  # the exception's text may quote the request
                set_status_on_exception=False,
            ) as span:
                code = grpc.StatusCode.UNKNOWN
                try:
                    answer = behaviour(request, context)
                    code = grpc.StatusCode.OK
                    return answer
                except Exception:
                    # `abort` sets the code before it raises. grpc answers any other exception with UNKNOWN.
                    code = context.code() or code  # type: ignore[attr-defined]  # newer than the stubs
                    raise
                finally:
                    span.set_attribute("rpc.grpc.status_code", code.value[0])
                    if code in OURS:
                        span.set_status(Status(StatusCode.ERROR, code.name))

        return call
