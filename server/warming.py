"""Warm before the first request: kernels compiled, and a new version's memory touched by questions like the latest."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from itertools import islice

import structlog

from model_store.errors import FieldValueError
from model_store.jit import kernels_are_cached, mark_kernels_cached
from server.question import Question
from server.serving import Serving
from server.warm_up import warm_up
from server.wire import Fields

WARM_CANDIDATES = 64
WARM_S = 1.0
"""No longer, whatever was asked lately: deltas may come each second, and questions may be large."""
KERNELS = "serve"

_log = structlog.get_logger(__name__)


def warm_kernels() -> None:
    """Compile the ranking kernels, or load them from the cache, and say so if it takes seconds."""
    if not kernels_are_cached(KERNELS):
        _log.info("compiling the ranking kernels; this happens once on a machine")
    warm_up()
    mark_kernels_cached(KERNELS)
    # The compiler leaves a million objects that live as long as the process: the collector need not visit them again.
    gc.collect()
    gc.freeze()


def warmed(serving: Serving, recent: Iterable[Question]) -> Serving:
    """The same, after it was asked what was asked lately, and a few questions that any model can be asked."""
    until = time.monotonic() + WARM_S
    for question in (*_synthetic(serving), *recent):
        if time.monotonic() > until:
            break
        try:
            question.ask(serving)
        except (FieldValueError, IndexError):
            continue  # a question of the version before need not fit this one
        except Exception:  # whatever a caller has asked, it must not keep a version from being served
            _log.exception("a question to warm with failed", model=serving.name, version=serving.version)
    return serving


def _synthetic(serving: Serving) -> list[Question]:
    """Questions that touch a version's memory: known, unknown and spelled-out items, every variant's own weights."""
    ids = list(islice(serving.catalogue.ids, WARM_CANDIDATES))
    fields: Fields = {field.name: "1" for field in serving.model.plan.request_fields if field.kind != "time"}
    spelled: Fields = {field.name: "1" for field in serving.model.plan.item_fields if field.kind != "time"}
    return [
        question
        for variant in range(serving.model.base.values.width)
        for question in (
            Question(fields, ids, [("spelled out", spelled)], variant, top_k=10),
            Question({}, [*ids, "no such item"], [], variant, top_k=None),
        )
    ]
