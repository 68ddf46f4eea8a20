"""A crew in one process, whose members can be lost: for tests of the methods without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from trainer.distributed.dealing import ShardPlan
from trainer.distributed.methods import MemberLost, Replies, nbytes
from trainer.distributed.reducer import Reducer
from trainer.distributed.shard import build_shard
from trainer.distributed.worker import Worker


class InProcessCrew:
    """Does every step at once. fail_at: steps, as (member, number, step, time), at which a member is lost."""

    def __init__(self, plans: Sequence[ShardPlan], reducers: int) -> None:
        self.workers, self.reducers = len(plans), reducers
        self._makers = {
            "worker": [
                partial(Worker, index, reducers, partial(build_shard, plan))
                for index, plan in enumerate(plans)
            ],
            "reducer": [partial(Reducer, index, len(plans)) for index in range(reducers)],
        }
        self.members: dict[str, list[Any]] = {
            kind: [make() for make in makers] for kind, makers in self._makers.items()
        }
        self.fail_at: set[tuple[str, int, str, int]] = set()
        self.asked: dict[str, int] = {}

    def ask_workers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        return self._ask("worker", step, arguments, inbox)

    def ask_reducers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        return self._ask("reducer", step, arguments, inbox)

    def fetch(self, part: Any) -> Any:
        return part

    def replace_lost(self) -> None:
        for kind, members in self.members.items():
            for number, member in enumerate(members):
                if member is None:
                    members[number] = self._makers[kind][number]()

    def _ask(self, kind: str, step: str, arguments: tuple[Any, ...], inbox: Replies | None) -> Replies:
        self.asked[f"{kind} {step}"] = time = self.asked.get(f"{kind} {step}", 0) + 1
        members = self.members[kind]
        answers = []
        others = self.reducers if kind == "worker" else self.workers
        for number, member in enumerate(members):
            if (kind, number, step, time) in self.fail_at:
                members[number] = None
                continue
            received = [parts[number] for parts in inbox.parts] if inbox is not None else ()
            summary, sent = getattr(member, step)(*arguments, inbox=received)
            answers.append((summary, sent or [None] * others))
        if any(member is None for member in members):
            raise MemberLost(f"a {kind} was lost")
        summaries, parts = zip(*answers, strict=True)
        return Replies(summaries, parts, sum(nbytes(part) for part in parts))
