"""The members of a distributed run as Ray actors. Needs the extra `distributed`, imported when a crew is opened."""

from __future__ import annotations

from typing import Any

from model_store.errors import UsageError


def the_ray() -> Any:
    """The module `ray`. Raises UsageError without the extra."""
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise UsageError("training on several workers needs Ray: pip install 'ftrie[distributed]'") from error
    return ray
