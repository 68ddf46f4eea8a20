"""What `ftrie admin status` makes of a model with many variants."""

from __future__ import annotations

from ctr.v1.admin_pb2 import VariantShare
from ftrie.commands.admin import traffic


def test_traffic_names_a_few_variants_and_counts_the_others() -> None:
    shares = [VariantShare(variant=f"v{number}", share=1 / 32) for number in range(32)]
    assert traffic(shares[:2]) == "v0 3.1%, v1 3.1%"
    assert traffic(shares) == "v0 3.1%, v1 3.1%, v2 3.1%, v3 3.1%, … 32 in all"
    assert traffic([]) == ""
