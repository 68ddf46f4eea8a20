"""A model's online metrics in its trainer: sums over closed requests by minute, variant and bucket of cookies.

In: the requests whose join window has closed. Out: the changed cells, written to the store every few seconds as
absolute numbers, and totals by variant for the trainer's own metrics. The cells and totals are part of the trainer's
checkpoint, together with the offsets in the sources, so a request is counted once, also after a crash. Once the minutes
of an hour can no longer change, the store is told to add them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.ratios import BUCKETS
from model_store.versions.online_metrics import (
    AGREED,
    CALLER,
    CTR_UNIT,
    HOUR,
    MINUTES_KEPT_S,
    OWN,
    SUMS,
    OnlineCell,
    OnlineMetrics,
    OnlineSums,
)
from trainer.events.columns import (
    BUCKET,
    CREDIT,
    CTR,
    FIRST,
    MODEL,
    OVERLAP,
    OWN_CLICKS,
    OWN_CTR,
    OWN_VARIANT,
    OWN_VERSION,
    POSITION,
    TEAM,
    VARIANT,
    VERSION,
)
from trainer.events.join import Closed, Joined
from trainer.events.join_kernels import MARKED
from trainer.events.waiting_rows import Segments
from trainer.examples.hashing import examination_of
from trainer.formats.cells import number_column, plain
from trainer.publish.rollback import Evidence

REMEMBERED_MINUTES = 120
MOST_VERSIONS = 10_000
MINUTE_US = 60_000_000

_CTR, _CLICKS, _POSITIVES, _WITHOUT, _UNSEEN = (
    SUMS.index(name) for name in ("ctr_nano", "clicks", "positives", "without_ctr", "unseen")
)
_REQUESTS, _SHOWN = (SUMS.index(name) for name in ("requests", "shown"))
NO_VARIANT = ""
"""Stands for every variant that the spec does not name; no variant of a spec has this name."""
_COLUMNS = {VERSION: pa.int64(), VARIANT: pa.binary(), BUCKET: pa.uint8(), CTR: pa.float64()}
_OF_APPRENTICE = {FIRST: pa.int64(), OVERLAP: pa.int64(), OWN_CLICKS: pa.float64()}
_OF_TEAMS = {TEAM: pa.binary(), CREDIT: pa.float64()}
_OWN_OF = {VERSION: OWN_VERSION, VARIANT: OWN_VARIANT, CTR: OWN_CTR}
_OWN_COLUMNS = {
    **_COLUMNS,
    MODEL: pa.binary(),
    OWN_VERSION: pa.float64(),
    OWN_VARIANT: pa.binary(),
    OWN_CTR: pa.float64(),
}
_HOURS_KEPT = MINUTES_KEPT_S // 3_600

Int64s = npt.NDArray[np.int64]


class OnlineAccumulator:
    """Online metrics of one model. For one thread.

    too_late: requests that are in no cell, as they are REMEMBERED_MINUTES or more older than the latest one.
    """

    def __init__(
        self,
        variants: Sequence[str] = (),
        examination: Sequence[float] | None = None,
        own: str | None = None,
    ) -> None:
        """variants: those of the spec, for `totals` and `recent`; all others are added up under NO_VARIANT.

        examination: of positions, by which a ctr, that of an item people look at, becomes one of an item shown there.
        own: of a model that learns clicked rows, its name: version, variant and ctr are what it predicted itself, not
        those of another model that answered.
        """
        self._own = own
        self.too_late = 0
        self._examination = examination
        self._totals = {name: np.zeros(len(SUMS), np.int64) for name in variants}
        self._known = frozenset(variants)
        self._cells: dict[tuple[int, str], OnlineCell] = {}
        self._unwritten: set[tuple[int, str]] = set()
        self._is_restored = False
        # By version: predicted positives in CTR_UNIT, and positives, of requests with a ctr for every item.
        self._versions: dict[int, Int64s] = {}
        self._since_us = 0
        self._latest = 0
        self._added_up = 0  # hours before this one need not be added up again

    def add(self, joined: Joined, rows: Segments) -> None:
        """Count the closed requests. O(rows) in numpy, and one step of Python for each cell that changes."""
        if not len(joined.closed):
            return
        requests = ClosedRequests.of(joined.closed, rows, self._examination, self._own, self._known)
        self._add_evidence(requests)
        self._add_totals(requests)
        in_time = requests.only(self._in_time(requests.minute))
        for part in (in_time, *in_time.orders()):
            for cell, added in _by_cell(part):
                self._add(cell, added)

    def flush(self, store: OnlineMetrics) -> int:
        """Write the cells that changed since the last call; return how many. After StoreUnavailable call it again."""
        changed = {cell: self._cells[cell] for cell in sorted(self._unwritten)}
        store.write(changed, whole=self._is_restored)
        self._unwritten.clear()
        self._is_restored = False
        self._forget(store)
        return len(changed)

    def take(self) -> dict[str, npt.NDArray[Any]]:
        """All of it as `state` gives it, for another partition's `absorb`; all but `totals` starts at 0 again."""
        taken = self.state()
        self._cells, self._versions, self._unwritten = {}, {}, set()
        return taken

    def absorb(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add what another partition has taken; requests of minutes that are forgotten here are too late.

        Not to `totals`, which the other partition keeps.
        """
        other = OnlineAccumulator()
        other.restore(state)
        self._latest = max(self._latest, other._latest)
        for cell, added in other._cells.items():
            if cell[0] > self._latest - REMEMBERED_MINUTES:
                self._add(cell, added)
            else:
                self.too_late += added.sums.requests
        for version, sums in other._versions.items():
            self._versions[version] = self._versions.get(version, 0) + sums
        self._limit_versions()

    def evidence(self, since_us: int = 0) -> dict[int, Evidence]:
        """Expected and observed positives by version, of the newest MOST_VERSIONS.

        since_us: only of requests after this minute; another one than before forgets all that was counted.
        """
        if since_us != self._since_us:
            self._since_us, self._versions = since_us, {}
        return {
            version: Evidence(float(sums[0]) * CTR_UNIT, float(sums[1]))
            for version, sums in self._versions.items()
        }

    def totals(self) -> dict[str, OnlineSums]:
        """Sums by variant over all requests closed here since the first run, also the late ones."""
        return {name: OnlineSums(*sums.tolist()) for name, sums in self._totals.items()}

    def recent(self) -> dict[str, OnlineCell]:
        """Outcomes by variant over the last REMEMBERED_MINUTES. O(cells)."""
        found = {name: OnlineCell.empty() for name in self._known}
        for (_, variant), cell in self._cells.items():
            if variant.endswith((CALLER, AGREED, OWN)):
                continue
            name = self._name(variant)
            found[name] = found[name] + cell if name in found else cell
        return found

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All of it as arrays, for a checkpoint."""
        cells, totals = sorted(self._cells), sorted(self._totals)
        names, lengths = _packed([variant for _, variant in cells])
        total_names, total_lengths = _packed(totals)
        versions = sorted(self._versions)
        places = [(cell[0], *self._cells[cell].versions) for cell in cells]
        sums = [self._cells[cell].buckets for cell in cells]
        credits = [
            (at, team, both)
            for at, cell in enumerate(cells)
            for team, both in self._cells[cell].credit.items()
        ]
        teams, team_lengths = _packed([team for _, team, _ in credits])
        of_teams: dict[str, npt.NDArray[Any]] = {
            "teams": teams,
            "team_lengths": team_lengths,
            "credited": np.array([at for at, _, _ in credits], np.int64),
            "credit": np.array([both for _, _, both in credits], np.int64),
        }
        return (of_teams if credits else {}) | {
            "places": np.array(places, np.int64).reshape(-1, 3),
            "names": names,
            "lengths": lengths,
            "buckets": _narrow(np.array(sums, np.int64).reshape(-1, BUCKETS, len(SUMS))),
            "total_names": total_names,
            "total_lengths": total_lengths,
            "totals": _narrow(
                np.array([self._totals[each] for each in totals], np.int64).reshape(-1, len(SUMS))
            ),
            "versions": np.array(versions, np.int64),
            "evidence": np.array([self._versions[each] for each in versions], np.int64).reshape(-1, 2),
            "head": np.array([self._latest, self.too_late, self._since_us, self._added_up], np.int64),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`. All its minutes are written again, which undoes what was written after it.

        Of a checkpoint of an earlier ftrie, which has no buckets, only the evidence.
        """
        self._cells = {}
        if "buckets" in state:
            variants = _unpacked(state["names"], state["lengths"])
            for (minute, *seen), name, sums in zip(
                state["places"].tolist(), variants, _whole(state["buckets"]), strict=True
            ):
                self._cells[minute, name] = OnlineCell(sums.copy(), (seen[0], seen[1]))
            if "credit" in state:
                cells, teams = list(self._cells), _unpacked(state["teams"], state["team_lengths"])
                for at, team, both in zip(state["credited"].tolist(), teams, state["credit"], strict=True):
                    before = self._cells[cells[at]]
                    credit = {**before.credit, team: both.copy()}
                    self._cells[cells[at]] = replace(before, credit=credit)
            names = _unpacked(state["total_names"], state["total_lengths"])
            self._totals |= dict(zip(names, _whole(state["totals"]), strict=True))
        self._unwritten = set(self._cells)
        self._is_restored = True
        self._versions = dict(zip(state["versions"].tolist(), state["evidence"].copy(), strict=True))
        self._latest, self.too_late, self._since_us, self._added_up = [*state["head"].tolist(), 0, 0][:4]

    def _in_time(self, minutes: Int64s) -> npt.NDArray[np.bool_]:
        """Which requests are counted. Depends on earlier requests only, not on when cells were written."""
        latest = np.maximum.accumulate(np.maximum(minutes, self._latest))
        in_time: npt.NDArray[np.bool_] = minutes > latest - REMEMBERED_MINUTES
        self._latest = int(latest.max(initial=self._latest))
        self.too_late += int(np.count_nonzero(~in_time))
        return in_time

    def _add(self, cell: tuple[int, str], added: OnlineCell) -> None:
        before = self._cells.get(cell)
        self._cells[cell] = added if before is None else before + added
        self._unwritten.add(cell)

    def _name(self, variant: str) -> str:
        return variant if variant in self._known else NO_VARIANT

    def _add_totals(self, requests: ClosedRequests) -> None:
        sums = np.zeros((len(requests.variants), len(SUMS)), np.int64)
        np.add.at(sums, requests.variant, requests.sums)
        for variant, added in zip(requests.variants, sums, strict=True):
            name = self._name(variant)
            self._totals[name] = self._totals[name] + added if name in self._totals else added

    def _add_evidence(self, requests: ClosedRequests) -> None:
        """Add the requests whose positives were predicted for every item."""
        # A window may end, and a run be resumed, after the order that requests before it be forgotten.
        predicted = (requests.sums[:, _WITHOUT] == 0) & (requests.minute > self._since_us // MINUTE_US)
        versions, index = np.unique(requests.version[predicted], return_inverse=True)
        sums = np.zeros((versions.size, 2), np.int64)
        np.add.at(sums, index.reshape(-1), requests.sums[predicted][:, [_CTR, _POSITIVES]])
        for version, added in zip(versions.tolist(), sums, strict=True):
            self._versions[version] = self._versions.get(version, 0) + added
        self._limit_versions()

    def _limit_versions(self) -> None:
        if len(self._versions) > MOST_VERSIONS:
            for version in sorted(self._versions)[:-MOST_VERSIONS]:
                del self._versions[version]

    def _forget(self, store: OnlineMetrics) -> None:
        """Drop minutes that can no longer change, and have the hours that end among them added up. O(cells).

        All their cells have been written: `restore` never restores part of a minute.
        """
        oldest = self._latest - REMEMBERED_MINUTES
        self._cells = {cell: each for cell, each in self._cells.items() if cell[0] > oldest}
        ended = (oldest + 1) // HOUR
        if ended > self._added_up:
            store.add_up(range(max(self._added_up, ended - _HOURS_KEPT), ended))
            self._added_up = ended


def _by_cell(requests: ClosedRequests) -> Iterator[tuple[tuple[int, str], OnlineCell]]:
    """The cells of the requests, in order."""
    minutes, of_minute = np.unique(requests.minute, return_inverse=True)
    kinds = len(requests.variants)
    codes, index = np.unique(of_minute.reshape(-1) * kinds + requests.variant, return_inverse=True)
    index = index.reshape(-1)
    sums = np.zeros((codes.size, BUCKETS, len(SUMS)), np.int64)
    np.add.at(sums, (index, requests.bucket), requests.sums)
    first, last = np.full(codes.size, np.iinfo(np.int64).max), np.zeros(codes.size, np.int64)
    known = requests.version > 0
    np.minimum.at(first, index[known], requests.version[known])
    np.maximum.at(last, index[known], requests.version[known])
    first[last == 0] = 0
    credits = requests.credits.by_cell(index, requests.bucket) if requests.credits is not None else {}
    for at, (code, each, versions) in enumerate(
        zip(codes.tolist(), sums, zip(first.tolist(), last.tolist(), strict=True), strict=True)
    ):
        minute, variant = divmod(code, kinds)
        cell = int(minutes[minute]), requests.variants[variant]
        yield cell, OnlineCell(each.copy(), versions, credits.get(at, {}))


def _narrow(sums: Int64s) -> Int64s:
    """Without the last of SUMS, which an earlier ftrie does not have, where it is 0."""
    return sums if sums[..., -1].any() else sums[..., :-1]


def _whole(sums: Int64s) -> Int64s:
    """The inverse of `_narrow`: a copy with all of SUMS."""
    whole = np.zeros((*sums.shape[:-1], len(SUMS)), np.int64)
    whole[..., : sums.shape[-1]] = sums
    return whole


def _packed(names: Sequence[str]) -> tuple[npt.NDArray[np.uint8], Int64s]:
    """Texts as two arrays: their bytes end to end, and the length of each."""
    encoded = [name.encode("utf-8", "surrogateescape") for name in names]
    lengths = np.array([len(name) for name in encoded], np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8).copy(), lengths


def _unpacked(data: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> list[str]:
    """Read back what `_packed` made."""
    whole, ends = data.tobytes(), np.cumsum(lengths)
    texts = [whole[end - size : end] for end, size in zip(ends, lengths, strict=True)]
    return [text.decode("utf-8", "surrogateescape") for text in texts]


@dataclass(frozen=True)
class ClosedRequests:
    """One element a request. minute, version, bucket: int64; variant: indices of `variants`.

    sums: int64[n, len(SUMS)]. own: int64[n, 3], in apprentice mode whether the model's first item is the one shown
    first, how many of its items were shown, and their predicted clicks in CTR_UNIT; -1 where that is not known.
    credits: of clicks on interleaved variants' items; None if there are none.
    """

    minute: Int64s
    version: Int64s
    bucket: Int64s
    variant: Int64s
    variants: tuple[str, ...]
    sums: Int64s
    own: Int64s
    credits: Credits | None = None

    @classmethod
    def of(
        cls,
        closed: Closed,
        rows: Segments,
        examination: Sequence[float] | None = None,
        own: str | None = None,
        known: Set[str] = frozenset(),
    ) -> ClosedRequests:
        """The sums of each request that has at least one item. examination, own: see `OnlineAccumulator`.

        known: the variants that may have credit.
        """
        shows = closed.rows > 0
        count = closed.rows[shows].astype(np.int64)
        first = np.cumsum(count) - count
        within = np.arange(int(count.sum())) - np.repeat(first, count)
        kinds = _COLUMNS if own is None else _OWN_COLUMNS
        if examination is not None:
            kinds = {**kinds, POSITION: pa.int64()}
        row = np.repeat(closed.row[shows], count) + within
        # A model of clicked rows has no order of its own for an apprentice's to be compared with.
        names = (*kinds, *_OF_APPRENTICE, *_OF_TEAMS) if own is None else tuple(kinds)
        columns = _gathered(rows.gather(np.repeat(closed.segment[shows], count), row, names), kinds)
        if own is not None:
            columns = _predicted_by(columns, own)
        codes, variants = _codes(columns[VARIANT].take(pa.array(first)))
        version = pc.fill_null(columns[VERSION].take(pa.array(first)), 0)
        ctr = pc.fill_null(columns[CTR], np.nan).to_numpy(zero_copy_only=False)
        alone = ctr
        if examination is not None:
            ctr = ctr * examination_of(columns[POSITION], examination)[0]
        sums = _sums(
            count,
            closed.exposed if closed.exposed.size else np.ones(ctr.size, np.bool_),
            closed.clicks[shows],
            closed.conversions[shows],
            closed.positives[shows],
            ctr,
        )
        if own is not None:
            # Its exposures are clicked items and what it predicts of them are conversions: the rate, its interval and
            # verdict are of these. Rows without a click are nothing to it, not unseen.
            sums[:, _CLICKS], sums[:, _UNSEEN] = sums[:, _POSITIVES], 0
        return cls(
            minute=closed.time_us[shows] // MINUTE_US,
            version=version.to_numpy(zero_copy_only=False).astype(np.int64),
            # Rows of an earlier ftrie's checkpoint have no bucket.
            bucket=pc.fill_null(
                columns[BUCKET].take(pa.array(first)).cast(pa.int64()), pa.array(first % BUCKETS)
            ).to_numpy(),
            variant=codes,
            variants=variants,
            sums=sums,
            own=_own(columns, first, count, sums, alone),
            credits=Credits.of(columns, within, count, closed.clicked[shows], known)
            if TEAM in columns
            else None,
        )

    def orders(self) -> Iterator[ClosedRequests]:
        """In apprentice mode the same requests once more, for the caller's order, where both agree, and the model's."""
        known = self.own[:, 0] >= 0
        if not known.any():
            return
        for chosen, suffix in ((known, CALLER), (self.own[:, 0] == 1, AGREED), (known, OWN)):
            part = self.only(chosen)
            sums = part.sums
            if suffix == OWN:
                sums = np.zeros_like(sums)
                sums[:, _REQUESTS], sums[:, [_SHOWN, _CTR]] = 1, part.own[:, 1:]
            yield replace(part, sums=sums, variants=tuple(name + suffix for name in part.variants))

    def only(self, chosen: npt.NDArray[np.bool_]) -> ClosedRequests:
        """The chosen requests, bool[n]."""
        arrays = {
            name: getattr(self, name)[chosen]
            for name in ("minute", "version", "bucket", "variant", "sums", "own")
        }
        credits = self.credits.only(chosen) if self.credits is not None else None
        return replace(self, **arrays, credits=credits)


@dataclass(frozen=True)
class Credits:
    """One element a clicked item that a team placed: its request int64, its team, an index of `teams`, and the credit.

    nano: in CTR_UNIT, below 0 where the click counts for the other teams.
    """

    request: Int64s
    team: Int64s
    teams: tuple[str, ...]
    nano: Int64s

    @classmethod
    def of(
        cls,
        columns: Mapping[str, pa.Array],
        within: Int64s,
        count: Int64s,
        clicked: npt.NDArray[np.uint64],
        known: Set[str],
    ) -> Credits:
        """From the rows of all requests. count: of each request; clicked: see `Closed`; known: others' is left out."""
        request = np.repeat(np.arange(count.size), count)
        marks = np.where(
            within < MARKED, clicked[request] >> np.minimum(within, MARKED - 1).astype(np.uint64), 0
        )
        credit = pc.fill_null(columns.get(CREDIT, pa.nulls(request.size, pa.float64())), 0.0).to_numpy(
            zero_copy_only=False
        )
        mine = np.flatnonzero((marks & np.uint64(1) != 0) & (credit != 0.0) & (np.abs(credit) <= 1.0))
        team, teams = _codes(columns[TEAM].take(pa.array(mine)))
        # A log of another system may name any number of them.
        named = np.array([name in known for name in teams], bool)[team]
        nano = np.rint(credit[mine] / CTR_UNIT).astype(np.int64)
        return cls(request[mine][named], team[named], teams, nano[named])

    def only(self, chosen: npt.NDArray[np.bool_]) -> Credits:
        """Those of the chosen requests, which are numbered from 0 again."""
        kept = chosen[self.request]
        number = np.cumsum(chosen) - 1
        return replace(self, request=number[self.request[kept]], team=self.team[kept], nano=self.nano[kept])

    def by_cell(self, cell: Int64s, bucket: Int64s) -> dict[int, dict[str, Int64s]]:
        """The credit of each cell that has any. cell, bucket: of each request."""
        found: dict[int, dict[str, Int64s]] = {}
        codes, index = np.unique(cell[self.request] * len(self.teams) + self.team, return_inverse=True)
        sums = np.zeros((codes.size, 2, BUCKETS), np.int64)
        np.add.at(
            sums, (index.reshape(-1), (self.nano < 0).astype(int), bucket[self.request]), np.abs(self.nano)
        )
        for code, both in zip(codes.tolist(), sums, strict=True):
            found.setdefault(code // len(self.teams), {})[self.teams[code % len(self.teams)]] = both.copy()
        return found


def _own(
    columns: Mapping[str, pa.Array], first: Int64s, rows: Int64s, sums: Int64s, ctr: npt.NDArray[np.float64]
) -> Int64s:
    """`ClosedRequests.own`. first: each request's first row; rows: how many it has; ctr: of every row."""
    own = np.full((first.size, 3), -1, np.int64)
    if not all(name in columns for name in _OF_APPRENTICE):
        return own
    same, overlap, clicks = (
        pc.fill_null(columns[name].take(pa.array(first)), -1).to_numpy(zero_copy_only=False)
        for name in _OF_APPRENTICE
    )
    # Each item is clicked at most once, so that more expected clicks than items are no figure of a server.
    known = (
        (same >= 0) & (same <= 1) & (overlap >= 0) & (overlap <= rows) & (clicks >= 0.0) & (clicks <= rows)
    )
    known &= (sums[:, _REQUESTS] > 0) & (sums[:, _WITHOUT] == 0)
    # Of a list that was seen in part, or less at its end, the model's would be seen likewise.
    whole = np.add.reduceat(np.nan_to_num(ctr), first) if first.size else ctr
    part = np.divide(sums[:, _CTR] * CTR_UNIT, whole, out=np.ones(first.size), where=whole > 0.0)
    nano = np.rint(clicks * part / CTR_UNIT)
    own[known] = np.stack([same, overlap, nano], axis=1)[known].astype(np.int64)
    return own


def _gathered(
    runs: Iterator[tuple[int, dict[str, pa.Array]]], kinds: Mapping[str, pa.DataType]
) -> dict[str, pa.Array]:
    parts = [columns for _, columns in runs]
    rare = _OF_APPRENTICE | _OF_TEAMS
    wanted = {**kinds} | {n: kind for n, kind in rare.items() if any(n in each for each in parts)}
    return {
        name: pa.concat_arrays(
            [
                _cast(columns[name], kind) if name in columns else pa.nulls(len(columns[CTR]), kind)
                for columns in parts
            ]
            or [pa.array([], kind)]
        )
        for name, kind in wanted.items()
    }


def _predicted_by(columns: dict[str, pa.Array], own: str) -> dict[str, pa.Array]:
    """With version, variant and ctr of this model, where another one has answered."""
    answered = pc.fill_null(pc.equal(columns[MODEL], own.encode()), False)
    predicted = {
        name: pc.if_else(answered, columns[name], columns[mine].cast(columns[name].type, safe=False))
        for name, mine in _OWN_OF.items()
    }
    return columns | predicted


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in its type; a prediction that is no number, as an event may have, is none."""
    if kind == pa.float64() and not pa.types.is_floating(column.type):
        return pa.array(number_column(plain(column))[0], from_pandas=True)
    return column.cast(kind)


def _codes(names: pa.Array) -> tuple[Int64s, tuple[str, ...]]:
    """Each text's index among the distinct ones; a null is the empty text."""
    encoded = pc.fill_null(names, b"").dictionary_encode()
    distinct = tuple(each.decode("utf-8", "surrogateescape") for each in encoded.dictionary.to_pylist())
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), distinct


def _sums(
    rows: Int64s,
    exposed: npt.NDArray[np.bool_],
    clicks: npt.NDArray[np.int32],
    conversions: npt.NDArray[np.int32],
    positives: npt.NDArray[np.int32],
    ctr: npt.NDArray[np.float64],
) -> Int64s:
    """The sums of each request, in the order of SUMS. exposed, ctr: of every row; ctr is NaN if unknown."""
    ends = np.cumsum(rows)
    usable = np.isfinite(ctr) & (ctr >= 0.0) & (ctr <= 1.0)
    complete = _between(np.cumsum(~usable & exposed), ends, rows) == 0
    nano = np.rint(np.where(usable & exposed, ctr, 0.0) / CTR_UNIT).astype(np.int64)
    shown = _between(np.cumsum(exposed), ends, rows)
    each: dict[str, Any] = {
        "requests": shown > 0,
        "shown": shown,
        "clicks": clicks,
        "conversions": conversions,
        "ctr_nano": np.where(complete, _between(np.cumsum(nano), ends, rows), 0),
        "without_ctr": ~complete,
        "positives": positives,
        "unseen": rows - shown,
    }
    return np.stack([each[name].astype(np.int64) for name in SUMS], axis=1)


def _between(running: Int64s, ends: Int64s, sizes: Int64s) -> Int64s:
    """Sums over consecutive ranges, from the cumulative sum over all of them."""
    padded = np.concatenate([np.zeros(1, np.int64), running])
    between: Int64s = padded[ends] - padded[ends - sizes]
    return between
