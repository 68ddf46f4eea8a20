"""A client of several servers, whatever these do: they refuse, drain, vanish, come back, and close old connections.

The servers are the product's gRPC server and health service on loopback with a handler that keeps what reaches it; the
clients are the product's. The model (docs/serving.md, "Several servers") is a set and a rule: which servers may get the
next call, `Balancing.may`, and what the attempts of one call may be, `Balancing.judge`.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ctr.v1.ranking_pb2 import RankRequest, RankResponse
from ftrie.api.access import BALANCES, Balance
from ftrie.api.client import Client, RankFailed
from ftrie.demo.processes import free_ports
from server.serve.grpc_server import grpc_server, listen
from server.serve.health import Health
from server.serve.ranking_service import SERVICE
from tests.waiting import WAIT_S, eventually

SERVERS = 3
ATTEMPTS = 5
KNOWN_WITHIN_S = 12.0
"""A server that is back is called after at most 5 s, a fifth more by chance, and one attempt to connect; doubled."""
USERS = [f"user-{number}" for number in range(40)]
"""By cookie each of three servers has one of them: otherwise with a chance of 3e-7."""
NUMBERS, USER = st.integers(0, SERVERS - 1), st.sampled_from(["", *USERS[:8]])
Code = grpc.StatusCode
MADE_AGAIN = {Code.UNAVAILABLE, Code.CANCELLED}
REFUSALS = st.sampled_from([Code.UNAVAILABLE] * 3 + [Code.CANCELLED, Code.RESOURCE_EXHAUSTED, Code.INTERNAL])

FEW, MANY = (st.lists(REFUSALS, min_size=size - 1, max_size=size) for size in (2, ATTEMPTS + 1))
"""Five attempts take 0.8 s."""


@dataclass
class Attempt:
    """A call that reached a server. status: None if the server ended before it answered."""

    server: int
    status: Code | None = None


class Server:
    """One address. refusals: of each call, first to last. gate: calls wait until it is open."""

    def __init__(
        self,
        number: int,
        port: int,
        attempts: defaultdict[str, list[Attempt]],
        refusals: defaultdict[str, deque[Code]],
        age_s: float,
    ) -> None:
        self.number, self.port, self.age_s = number, port, age_s
        self.attempts, self.refusals = attempts, refusals
        self.gate = threading.Event()
        self.gate.set()
        self.is_up = self.serves = False

    def start(self, serves: bool) -> None:
        forms = RankRequest.FromString, RankResponse.SerializeToString
        rank = grpc.unary_unary_rpc_method_handler(self._rank, *forms)
        handlers = grpc.method_handlers_generic_handler(SERVICE, {"Rank": rank})
        self.health = Health()
        self.say(serves)
        self.grpc = grpc_server(handlers, self.health, 8, connection_age_s=self.age_s)
        listen(self.grpc, "127.0.0.1", self.port)
        self.grpc.start()
        self.is_up = True

    def say(self, serves: bool) -> None:
        self.serves = serves
        self.health.say(serving=serves)

    def leave(self, *, drains: bool) -> None:
        """Calls in progress are answered if it drains; otherwise none of them is any more when this returns."""
        self.is_up = self.serves = False
        if drains:
            self.health.drain()
            self.grpc.stop(WAIT_S)
        else:
            self.grpc.stop(None).wait()

    def _rank(self, request: RankRequest, context: grpc.ServicerContext) -> RankResponse:
        self.attempts[request.request_id].append(attempt := Attempt(self.number))
        refusals = self.refusals[request.request_id]
        self.gate.wait(WAIT_S)
        if context.is_active():
            attempt.status = refusals.popleft() if refusals else Code.OK
            if attempt.status is not Code.OK:
                context.abort(attempt.status, f"server {self.number} refuses")
        return RankResponse(model=str(self.number))


def serving(least: int) -> Callable[[Any], bool]:
    """The condition of a rule: as many servers serve."""
    return lambda machine: sum(server.serves for server in machine.servers) >= least


class Balancing(RuleBasedStateMachine):
    """may: who may get a call: who serves, and who did until a change that the clients may not know yet.

    sure: who has served since the clients knew all. prefers: (user, a, b): by cookie, the user was sent to a while b
    served too; each user has one order of all servers, so never (user, b, a).
    """

    @initialize(balance=st.sampled_from(BALANCES), connections_age=st.booleans())
    def begin(self, balance: Balance, connections_age: bool) -> None:
        self.balance, self.connections_age = balance, connections_age
        self.attempts = defaultdict[str, list[Attempt]](list)
        self.refusals = defaultdict[str, deque[Code]](deque)
        self.prefers = set[tuple[str, int, int]]()
        self.ids = map(str, itertools.count())
        age_s = 0.3 if connections_age else 0.0
        self.servers = [
            Server(number, port, self.attempts, self.refusals, age_s)
            for number, port in enumerate(free_ports(SERVERS))
        ]
        for server in self.servers:
            server.start(serves=True)
        addresses = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        self.clients = [Client(addresses, balance=balance, timeout_s=WAIT_S) for _ in range(2)]
        self.may, self.sure = set(range(SERVERS)), set[int]()
        self.know_all()

    def changed(self, number: int) -> None:
        self.may.add(number)
        self.sure.discard(number)

    def judge(
        self, number: str, answered_by: int | None, failed: RankFailed | None, timeout_s: float
    ) -> None:
        tried = self.attempts[number]
        statuses = [each.status for each in tried]
        assert {each.server for each in tried} <= self.may, (tried, self.may)
        assert len(tried) <= ATTEMPTS
        # Only a refusal that may be made again, or a server that ended, is followed by another attempt.
        assert all(status in {*MADE_AGAIN, None} for status in statuses[:-1]), tried
        if failed is None:
            assert (tried[-1].server, tried[-1].status) == (answered_by, Code.OK)
        elif failed.code is Code.DEADLINE_EXCEEDED:
            assert timeout_s < WAIT_S, tried
        elif failed.code in MADE_AGAIN:
            assert len(tried) == ATTEMPTS or not self.sure, (tried, failed)
        if failed is not None and tried and statuses[-1] not in {Code.OK, None}:
            assert failed.code is statuses[-1]
            assert f"server {tried[-1].server} refuses" in str(failed)

    def ask(
        self, number: str, user: str, client: int = 0, timeout_s: float = WAIT_S
    ) -> tuple[int | None, RankFailed | None]:
        """The server that answered, or the error."""
        try:
            answer = self.clients[client].rank(
                cookie=user, candidates=["a"], request_id=number, timeout_s=timeout_s
            )
        except RankFailed as failed:
            return None, failed
        return int(answer.model), None

    def call(
        self, user: str = "", *, client: int = 0, timeout_s: float = WAIT_S, refusals: Sequence[Code] = ()
    ) -> int | Code:
        """The server that answered, or the status with which the call failed."""
        number = next(self.ids)
        self.refusals[number].extend(refusals)
        answered_by, failed = self.ask(number, user, client, timeout_s)
        self.judge(number, answered_by, failed, timeout_s)
        self.last_tried = self.attempts[number]
        return failed.code if answered_by is None and failed is not None else answered_by  # type: ignore[return-value]

    def know_all(self) -> None:
        """Until both clients call all servers that serve, and no other."""
        if self.may == self.sure:
            return
        serving = {server.number for server in self.servers if server.serves}

        def known(client: int) -> bool:
            if not serving:
                return self.call(client=client) in MADE_AGAIN
            users = USERS if self.balance == "cookie" else USERS[: 2 * SERVERS]
            return {self.call(user, client=client) for user in users} == serving

        for client in range(len(self.clients)):
            eventually(lambda client=client: known(client), f"{serving} known", KNOWN_WITHIN_S)  # type: ignore[misc]
        self.may, self.sure = set(serving), set(serving)

    # -- what servers do

    @rule(number=NUMBERS, serves=st.booleans())
    def say(self, number: int, serves: bool) -> None:
        if self.servers[number].is_up and self.servers[number].serves != serves:
            self.servers[number].say(serves)
            self.changed(number)

    @precondition(lambda self: any(server.is_up for server in self.servers))
    @rule(choice=NUMBERS, drains=st.booleans())
    def leave(self, choice: int, drains: bool) -> None:
        up = [server for server in self.servers if server.is_up]
        leaves = up[choice % len(up)]
        leaves.leave(drains=drains)
        self.changed(leaves.number)

    @precondition(lambda self: not all(server.is_up for server in self.servers))
    @rule(choice=NUMBERS, serves=st.sampled_from([True, True, False]))
    def come_back(self, choice: int, serves: bool) -> None:
        down = [server for server in self.servers if not server.is_up]
        comes = down[choice % len(down)]
        comes.start(serves)
        self.changed(comes.number)

    # -- what callers see

    @rule(users=st.lists(USER, min_size=1, max_size=8))
    def calls(self, users: list[str]) -> None:
        for user in users if self.sure else users[:1]:
            self.call(user)

    @precondition(lambda self: self.may != self.sure)
    @rule()
    def clients_learn_of_it(self) -> None:
        self.know_all()

    @precondition(lambda self: self.may == self.sure and self.may)
    @rule()
    def calls_are_divided(self) -> None:
        if self.balance == "cookie":
            for user, client in itertools.product(USERS[:12], range(2)):
                home = self.call(user, client=client)
                assert isinstance(home, int)
                self.prefers |= {(user, home, other) for other in self.may - {home}}
            assert not any((user, b, a) in self.prefers for user, a, b in self.prefers)
        # gRPC begins another round with each change of a connection: attempts to connect change it, too.
        elif not self.connections_age and all(server.is_up for server in self.servers):
            calls = Counter(self.call() for _ in range(12))
            assert max(calls.values()) - min(calls[number] for number in self.may) <= 1, calls

    @precondition(serving(1))
    @rule(refusals=MANY | FEW | FEW | FEW, user=USER)
    def attempts_are_refused(self, refusals: list[Code], user: str) -> None:
        self.know_all()
        result = self.call(user, refusals=refusals)
        made = [*itertools.takewhile(MADE_AGAIN.__contains__, refusals[:ATTEMPTS])]
        last = [*refusals, Code.OK][len(made)]
        expected = made if len(made) == ATTEMPTS else [*made, last]
        statuses = [each.status for each in self.last_tried]
        assert statuses == expected, (self.last_tried, expected)
        assert (result if isinstance(result, Code) else Code.OK) is expected[-1]

    @precondition(serving(1))
    @rule(number=NUMBERS, user=USER)
    def one_does_not_answer(self, number: int, user: str) -> None:
        """Its calls end with their deadline, and no server gets them again; a client does not avoid it."""
        self.know_all()
        gate = self.servers[number].gate
        gate.clear()
        for _ in self.may:
            result = self.call(user, timeout_s=0.15)
            assert result is Code.DEADLINE_EXCEEDED or isinstance(result, int)
            assert result != number
            assert len(self.last_tried) <= 1
        gate.set()

    @precondition(serving(2))
    @rule(choice=NUMBERS, drains=st.booleans(), users=st.lists(USER, min_size=4, max_size=8))
    def one_leaves_with_calls_in_progress(self, choice: int, drains: bool, users: list[str]) -> None:
        """It answers them if it drains; if it is killed, others do."""
        self.know_all()
        leaves = self.servers[sorted(self.may)[choice % len(self.may)]]
        for server in self.servers:
            server.gate.clear()
        ids = [next(self.ids) for _ in users]
        with ThreadPoolExecutor(len(users)) as callers:
            calls = [callers.submit(self.ask, *each) for each in zip(ids, users, strict=True)]
            eventually(lambda: all(self.attempts[each] for each in ids), "all calls in progress")
            leaves.leave(drains=drains)
            self.changed(leaves.number)
            for server in self.servers:
                server.gate.set()
            results = [call.result() for call in calls]
        for each, (answered_by, failed) in zip(ids, results, strict=True):
            self.judge(each, answered_by, failed, WAIT_S)
            first, *others = self.attempts[each]
            assert len(others) == (first.server == leaves.number and not drains)

    def teardown(self) -> None:
        for client in getattr(self, "clients", ()):
            client.close()
        for server in getattr(self, "servers", ()):
            server.gate.set()
            if server.is_up:
                server.leave(drains=False)


@pytest.mark.parametrize(
    ("examples", "steps"), [(3, 8), pytest.param(16, 15, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_whatever_servers_do_a_call_goes_where_it_may_and_is_answered_once(examples: int, steps: int) -> None:
    how = settings(max_examples=examples, stateful_step_count=steps, deadline=None, phases=[Phase.generate])
    run_state_machine_as_test(Balancing, settings=how)  # type: ignore[no-untyped-call]
