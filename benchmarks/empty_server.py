"""The limit that `benchmarks.rank` measures against: a plain grpc server whose handler parses the request, no more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc

from ctr.v1.ranking_pb2 import RankRequest, RankResponse
from server.serve.ranking_service import SERVICE
from server.settings import DEFAULT_THREADS

NOTHING = RankResponse()


def rank(request: RankRequest, context: grpc.ServicerContext) -> RankResponse:
    """Answer nothing."""
    return NOTHING


def main() -> None:
    """Serve until terminated; prints the address."""
    method = grpc.unary_unary_rpc_method_handler(rank, RankRequest.FromString, RankResponse.SerializeToString)
    server = grpc.server(ThreadPoolExecutor(DEFAULT_THREADS), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Rank": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


# Started by benchmarks/rank.py as `python -m benchmarks.empty_server`; no benchmark by itself.
if __name__ == "__main__":
    main()
