"""The users that a store with ACLs needs: which keys and Redis commands each may use, and for what.

docs/operating.md shows `Role.rule` of each; a test runs every command of ftrie as its role.
"""

from __future__ import annotations

from typing import NamedTuple

_OPENS = "hello ping select client|setinfo"
_READS = """get type scan exists strlen time hget hmget hgetall hlen lrange smembers zrange zrevrange zscore
xrange xrevrange xinfo|stream"""
_WRITES = """set incr incrby del unlink expire persist pexpire hset hdel hincrby lpush rpush lrem ltrim zadd zrem
xadd xdel xtrim"""
_SCRIPTS = "watch unwatch multi exec evalsha script|load"


class Role(NamedTuple):
    """One user. keys: patterns as ACL SETUSER takes them; commands: of Redis; runs: the commands of ftrie it is for."""

    name: str
    keys: str
    commands: str
    runs: tuple[str, ...]

    @property
    def rule(self) -> str:
        """The command that creates it, with a password to replace."""
        allowed = " ".join(f"+{command}" for command in self.commands.split())
        return f"ACL SETUSER {self.name} on >PASSWORD resetkeys resetchannels -@all {self.keys} {allowed}"


def _below(group: str, names: str) -> tuple[str, ...]:
    return tuple(f"{group} {name}" for name in names.split())


ROLES = (
    Role(
        "ftrie-server",
        "%R~ftrie:* %RW~ftrie:items:epoch %RW~ftrie:{*}:impressions %RW~ftrie:{*}:clicks %RW~ftrie:{*}:feedback:*",
        f"{_OPENS} info set {_READS} xread xadd xtrim eval evalsha multi exec",
        ("serve", "dashboard", "simulate"),
    ),
    Role(
        "ftrie-trainer",
        "%RW~ftrie:{*",
        f"{_OPENS} {_READS} {_WRITES} {_SCRIPTS}",
        (
            *("train", "train-distributed", "trainer", "evaluate", "audit", "replay"),
            *_below("experiment", "show set pin unpin shadow report stop clear"),
            *_below("store", "versions activate rollback resume audit gc inspect import export dead"),
        ),
    ),
    Role(
        "ftrie-loader",
        "%RW~ftrie:user:* %RW~ftrie:item:* %RW~ftrie:items:* %RW~ftrie:candidates:*",
        f"{_OPENS} del set incr hset rpush xadd multi exec",
        _below("store load", "users items candidates"),
    ),
    Role(
        "ftrie-operator",
        "%RW~ftrie:*",
        f"{_OPENS} info {_READS} {_WRITES} {_SCRIPTS} eval rename xsetid",
        ("store check",),
    ),
    Role("ftrie-feedback", "%RW~ftrie:{*}:impressions %RW~ftrie:{*}:clicks", f"{_OPENS} xadd", ()),
)
