"""The same requests in each protocol's form, and the answer of one of them, so that answers can be compared."""

from __future__ import annotations

import json
import socket
import urllib.request
from dataclasses import dataclass
from math import exp
from pathlib import Path

from benchmarks.rank_requests import framed, texts
from benchmarks.rivals import plain_load, shared_model, vowpal_wabbit
from benchmarks.rivals.scorers import SCORERS
from ctr.v1.ranking_pb2 import RankRequest
from ftrie.api.client import Client

Rates = dict[str, float]
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Bodies:
    """Files of the same requests: messages for gRPC, JSON for HTTP, text for Vowpal Wabbit's daemon."""

    grpc: Path
    http: Path
    vw: Path

    @classmethod
    def write(cls, folder: Path, requests: list[RankRequest]) -> Bodies:
        """Write the files. The daemon has no items: it gets their features with each request, put together here."""
        bodies, texts = cls(*(folder / name for name in ("grpc", "http", "vw"))), vowpal_wabbit.item_texts()
        bodies.grpc.write_bytes(b"".join(map(framed, requests)))
        bodies.http.write_bytes(plain_load.pack([_http(request) for request in requests]))
        bodies.vw.write_bytes(plain_load.pack([_vw(request, texts) for request in requests]))
        return bodies


def fields_of(request: RankRequest) -> dict[str, str]:
    """The user's and the context's features."""
    return texts(request.user) | texts(request.context)


def expected(request: RankRequest, weights: dict[str, float]) -> Rates:
    """Every candidate's ctr, added up in 64 bits from the model's keys."""
    fields, items = fields_of(request), shared_model.items()
    return {
        item: _sigmoid(sum(weights.get(key, 0.0) for key in shared_model.keys_of(fields | items[item])))
        for item in request.item_ids
    }


def ask_grpc(address: str, request: RankRequest) -> Rates:
    """Every candidate's ctr from a gRPC server."""
    user, context = texts(request.user), texts(request.context)
    candidates = list(request.item_ids)
    with Client(address, timeout_s=TIMEOUT_S) as client:
        answer = client.rank(
            request.model, candidates=candidates, user=user, context=context, top_k=len(candidates)
        )
    return {item.id: item.ctr for item in answer.items}


def ask_http(address: str, request: RankRequest) -> Rates:
    """Every candidate's ctr from LitServe."""
    body = json.dumps(_json(request) | {"top_k": len(request.item_ids)}).encode()
    post = urllib.request.Request(
        f"http://{address}/predict", body, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(post, timeout=TIMEOUT_S) as answer:
        return {item["id"]: item["ctr"] for item in json.load(answer)["items"]}


def ask_vw(address: str, request: RankRequest) -> Rates:
    """Every candidate's ctr from Vowpal Wabbit's daemon, which answers `number:score,…`."""
    host, _, port = address.rpartition(":")
    answer = b""
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(_vw(request, vowpal_wabbit.item_texts()))
        while not plain_load.vw_ended(answer):
            answer += connection.recv(1 << 18)
    pairs = (pair.split(":") for pair in answer.decode().strip().split(","))
    return {request.item_ids[int(number)]: _sigmoid(float(score)) for number, score in pairs}


def ask_scorer(name: str, model: Path, request: RankRequest) -> Rates:
    """Every candidate's ctr from a scorer in this process."""
    candidates = list(request.item_ids)
    return dict(zip(candidates, SCORERS[name](model).ctr(fields_of(request), candidates), strict=True))


def _json(request: RankRequest) -> dict[str, object]:
    return {
        "user": texts(request.user),
        "context": texts(request.context),
        "item_ids": list(request.item_ids),
        "top_k": request.top_k,
    }


def _http(request: RankRequest) -> bytes:
    return plain_load.post("/predict", json.dumps(_json(request)).encode())


def _vw(request: RankRequest, texts: dict[str, str]) -> bytes:
    return vowpal_wabbit.lines(fields_of(request), list(request.item_ids), texts).encode()


def _sigmoid(score: float) -> float:
    return 1.0 / (1.0 + exp(-score))
