"""How the versions of a model are told of in a message."""

from __future__ import annotations

from model_store.versions.published_versions import listed


def test_of_many_versions_a_message_names_the_first_and_the_last() -> None:
    assert listed([]) == "none"
    assert listed(range(1, 101)).endswith("98, 99, 100")
    assert listed(range(1, 2001)) == "1, 2, 3, … 1998, 1999, 2000 (2,000 in total)"
