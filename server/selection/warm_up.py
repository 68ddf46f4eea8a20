"""Compiling the selection kernels: requests whose options lead through every one of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ctr.v1.ranking_pb2 import RankRequest
from server.selection.options import Options
from server.selection.propensity import integrated


def warm_up_approximation() -> None:
    """Compile what only thousands of candidates need."""
    few = np.zeros(3), np.ones(3), lambda score: score, np.arange(1), 1
    integrated(*few, exact_up_to=0)


def options_for_warming() -> Iterator[Options]:
    """Options for a request with two candidates or more; together they call every other kernel of selection."""
    thompson = {"thompson": {"width": 1.0}}
    caps = [{"field": "brand", "at_most": 1}]
    for message in (
        RankRequest(exploration=thompson),
        RankRequest(exploration=thompson, caps=caps, objective="ctr"),
    ):
        options = Options.of(message, "", "warm-up")
        if options is not None:
            yield options
