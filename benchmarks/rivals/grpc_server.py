"""A rival behind a plain grpc server: the same messages, server and threads as the empty handler's.

python -m benchmarks.rivals.grpc_server SCORER MODEL
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from benchmarks.rank_requests import texts
from benchmarks.rivals.scorers import SCORERS, Scorer, best
from ctr.v1.ranking_pb2 import RankedItem, RankRequest, RankResponse
from server.serve.ranking_service import SERVICE
from server.settings import DEFAULT_THREADS


def handler(scorer: Scorer) -> grpc.RpcMethodHandler:
    """Rank, as a user of the rival would write it."""

    def rank(request: RankRequest, context: grpc.ServicerContext) -> RankResponse:
        candidates = list(request.item_ids)
        rates = scorer.ctr(texts(request.user) | texts(request.context), candidates)
        ranked = best(candidates, rates, request.top_k)
        return RankResponse(items=[RankedItem(id=item, ctr=rate) for item, rate in ranked])

    return grpc.unary_unary_rpc_method_handler(rank, RankRequest.FromString, RankResponse.SerializeToString)


def main(name: str, model: Path) -> None:
    """Serve until terminated; prints the address."""
    server = grpc.server(ThreadPoolExecutor(DEFAULT_THREADS), options=[("grpc.so_reuseport", 0)])
    methods = {"Rank": handler(SCORERS[name](model))}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
