"""The peer of `benchmarks.rank`: our grpc server with a handler that parses the request and answers nothing."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health

from ctr.v1.ranking_pb2 import RankRequest, RankResponse
from server.lifecycle import DEFAULT_THREADS, grpc_server
from server.service import SERVICE

NOTHING = RankResponse()


def rank(request: RankRequest, context: grpc.ServicerContext) -> RankResponse:
    """Answer nothing."""
    return NOTHING


def main() -> None:
    """Serve until terminated; prints the address."""
    method = grpc.unary_unary_rpc_method_handler(rank, RankRequest.FromString, RankResponse.SerializeToString)
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"Rank": method})
    server = grpc_server(handlers, health.HealthServicer(), DEFAULT_THREADS)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


# Started by benchmarks/rank.py as `python -m benchmarks.empty_server`; no benchmark by itself.
if __name__ == "__main__":
    main()
