"""A trainer in a process of its own: takes the lease, says its epoch, and on each line it reads tries to publish.

python -m tests.model_store.contender STORE OWNER TTL_S
"""

from __future__ import annotations

import sys

from model_store.errors import StoreError
from model_store.store import Store
from tests.model_store.models import model


def main(url: str, owner: str, ttl_s: str) -> None:
    """Answer each line with the version that is active by this trainer's doing, or the name of what prevents it."""
    with Store.open(url) as store:
        ads, lease = store.model("ads"), store.trainer_lease("ads", owner)
        lease.ttl_s = float(ttl_s)
        print(lease.take(), flush=True)
        for _ in sys.stdin:
            try:
                version = ads.publish(model(), epoch=lease.epoch)
                ads.activate(version, epoch=lease.epoch)
                print(version, flush=True)
            except StoreError as error:
                print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
