"""The status of a trainer: a line on the terminal or JSON every few seconds, its warnings, its Prometheus metrics.

docs/trainer.md documents each member, docs/metrics.md lists the metrics. `Reporter` makes status and warnings of a
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from model_store.clock import SYSTEM, Clock
from model_store.errors import InputError, shown
from model_store.files import port_taken
from model_store.metrics import Family, pause_where_none_is_accepted
from model_store.versions.online_metrics import OnlineCell, OnlineSums
from trainer.events.events import Lag, Source
from trainer.events.join import EventCounts
from trainer.learn.metrics.records import VariantMetrics
from trainer.publish.publisher import PublishPacer
from trainer.runs.stream import StreamLoop
from trainer.sources.files import RowSource


@dataclass(frozen=True)
class VariantOutcome:
    """What users did with one variant's answers, over requests whose join window has closed.

    requests, impressions (items shown), clicks, conversions: since the first run. ctr, calibration: over the minutes
    that the online metrics remember; clicks an impression, None without impressions; predicted clicks a click, None
    without clicks or if an item had no ctr. ctr_error, calibration_error: their standard errors, between buckets of
    cookies; None before requests fill all buckets.
    """

    requests: int
    impressions: int
    clicks: int
    conversions: int
    ctr: float | None
    calibration: float | None
    ctr_error: float | None = None
    calibration_error: float | None = None

    @classmethod
    def of(cls, totals: OnlineSums, recent: OnlineCell | None) -> VariantOutcome:
        """recent: None where the recent minutes are another trainer's."""
        counts = totals.requests, totals.shown, totals.clicks, totals.conversions
        rates = (recent.click_rate, recent.calibration) if recent is not None else (None, None)
        values = (rate.value if rate is not None else None for rate in rates)
        errors = (rate.error if rate is not None else None for rate in rates)
        return cls(*counts, *values, *errors)


@dataclass(frozen=True)
class Status:
    """The status of a trainer at one moment.

    events, examples: since the first run; rate: events a second since the last status. logloss: of the last window; of
    all examples before the first window has ended. version: the last one published by this run; active: the one served;
    inactive: why published versions are not activated, by an operator's pin or another writer. lags: by source. join:
    the join's counts. rolled_back: automatic rollbacks. store_away: the last access to the store failed. store_losses:
    how often the store was found without the trainer's lease, and so without its data. users_dropped: users whose
    histories were dropped, since the first run, as too many others came after them. behind: a source is read later
    than --max-lag. normalized_entropy: of the worst variant in the last 1,000 rows or more. withheld: why nothing is
    published. partition: as `2/3`, empty for a trainer that learns all; round: the one it learns; waiting_s: how long
    it has waited there for other partitions. warnings: present problems. variants: metrics over all examples, in the
    last status only. outcomes: by variant of the spec, of the answers whose requests this trainer has closed.
    """

    model: str
    events: int
    examples: int
    rate: float
    keys: int
    logloss: float | None
    version: int | None
    published: dict[str, int]
    failed_checkpoints: int
    dead_letters: int
    lags: dict[str, Lag]
    lost: dict[str, int]
    counts: dict[str, int]
    join: dict[str, int]
    rolled_back: int = 0
    active: int | None = None
    inactive: str = ""
    store_away: bool = False
    store_losses: int = 0
    users_dropped: int = 0
    behind: bool = False
    normalized_entropy: float | None = None
    withheld: str = ""
    partition: str = ""
    round: int = 0
    waiting_s: float = 0.0
    warnings: tuple[str, ...] = ()
    variants: dict[str, VariantMetrics] = field(default_factory=dict)
    outcomes: dict[str, VariantOutcome] = field(default_factory=dict)
    ended: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        lags = {name: vars(lag) for name, lag in self.lags.items()}
        variants = {name: metrics.as_dict() for name, metrics in self.variants.items()}
        outcomes = {name: vars(outcome) for name, outcome in self.outcomes.items()}
        more = {"lags": lags, "warnings": list(self.warnings), "variants": variants, "outcomes": outcomes}
        return {**vars(self), **more}

    def line(self) -> str:
        """One line for the terminal."""
        parts = [
            f"{self.events:,} events ({self.rate:,.0f}/s)",
            f"{self.examples:,} examples",
            f"{self.keys:,} keys",
        ]
        if self.logloss is not None:
            parts.append(f"recent log-loss {shown(self.logloss)}")
        if self.version is not None:
            parts.append(f"version {self.version}")
        parts += [f"partition {self.partition}, round {self.round:,}"] if self.partition else []
        parts += [f"WAITING for other partitions ({self.waiting_s:.0f} s)"] if self.waiting_s >= 1.0 else []
        parts += self._problems()
        parts += [self._lag()] if self.lags else []
        parts += [f"{self.join.get('pending', 0):,} requests open"] if self.join else []
        parts += [f"{self.dead_letters:,} dead letters"] if self.dead_letters else []
        return " · ".join(parts)

    def _problems(self) -> list[str]:
        """Why the learned model is not served, or is not complete; in capitals to attract attention."""
        refused = self.published.get("refused", 0)
        parts = [f"{refused:,} REFUSED"] if refused else []
        parts += [f"{self.rolled_back:,} ROLLED BACK"] if self.rolled_back else []
        parts += [f"INACTIVE: an operator has pinned version {self.active}"] if self.inactive else []
        parts += [f"STORE LOST ITS DATA ({self.store_losses:,}x)"] if self.store_losses else []
        unknown = self.counts.get("unknown_items", 0)
        parts += [f"{unknown:,} rows of UNKNOWN ITEMS skipped"] if unknown else []
        parts += ["WITHHELD: too many rows were rejected"] if self.withheld else []
        return parts + (["STORE AWAY"] if self.store_away else [])

    def _lag(self) -> str:
        known = [lag for lag in self.lags.values() if lag.events is not None]
        seconds = [lag.seconds for lag in self.lags.values() if lag.seconds is not None]
        unread = sum(lag.bytes or 0 for lag in self.lags.values() if lag.events is None)
        parts = [f"{sum(lag.events or 0 for lag in known):,} events"] if known else []
        parts += [f"{unread / 1e6:,.1f} MB"] if unread else []
        parts += [f"{max(seconds):.1f} s"] if seconds else []
        return f"lag {', '.join(parts) or 'unknown'}"


SKEW_S = 60.0
"""Clocks that differ by less are not warned of."""


def skew_warnings(lags: Mapping[str, Lag]) -> dict[str, str]:
    """What is to be said of the clocks, by kind."""
    found = {}
    for name, lag in lags.items():
        if lag.behind > SKEW_S:
            found[f"behind {name}"] = (
                f"{name}: an impression came {lag.behind:,.0f} s after its own time: a server's clock is behind, or it "
                "could not write; the window for clicks is counted from the arrival"
            )
        if lag.ahead > SKEW_S:
            found[f"ahead {name}"] = (
                f"{name}: an event came {lag.ahead:,.0f} s before its own time: a server's clock is ahead, or the "
                "store's is behind; the event counts from its arrival"
            )
        if lag.ids_ahead:
            found[f"ids {name}"] = (
                f"{name}: the ids of its entries are {lag.ids_ahead:,.0f} s ahead of the store's clock; entries count "
                "from when they are read; `ftrie store check --repair` gives them ids of the present"
            )
        if lag.clock_ahead:
            found[f"clock {name}"] = (
                f"{name}: the store's clock is {lag.clock_ahead:,.0f} s ahead of the time that has passed here; events "
                "count from an earlier time, which catches up by an eighth of what passes"
            )
    return found


LATE_SHARE, LATE_LEAST, LATE_EVERY_S = 0.05, 20, 60.0
"""The share of late feedback that is warned of, the least number of it, and over how long it is counted."""


IDLE_AFTER_S = 60.0
"""After that long without events the reason is looked for."""


def idle_reason(model: str, sources: Sequence[Source | RowSource], counts: EventCounts) -> str:
    """The likely reason why the sources deliver nothing."""
    what = "no impression" if counts.feedback and not counts.impressions else "nothing"
    held = "; ".join(source.holds() for source in sources)
    if counts.rows or (counts.examples and not counts.impressions):  # rows of a log, or of views
        hint = "All rows have been learned; the trainer waits for more"
    elif counts.impressions:
        hint = "Servers may be idle or stopped, or log their impressions elsewhere"
    else:
        hint = (
            "Impressions come from servers that log them to the same store: "
            f"ftrie serve {model} --impressions store; name other sources with --from"
        )
        if counts.feedback:
            clicks = f"Only clicks were read ({counts.feedback:,}), which teach nothing without impressions."
            hint = f"{clicks} {hint}"
    return f"{what} was read for {IDLE_AFTER_S:.0f} s: {held}. {hint}"


class Reporter:
    """What a trainer reports of its loop. For one thread. `behind`: a source is read later than `max_lag_s`."""

    def __init__(
        self,
        loop: StreamLoop,
        sources: Sequence[Source | RowSource],
        max_lag_s: float,
        clock: Clock = SYSTEM,
    ) -> None:
        self.behind = False
        self._now = clock.monotonic
        self._loop, self._sources, self._max_lag_s = loop, sources, max_lag_s
        self._rate_since = (self._now(), loop.counts.events)
        self._lags: dict[str, Lag] = {}
        self._useful, self._useful_since_s, self._idle = -1, 0.0, ""
        self._joined, self._late_since_s, self._late = loop.joined(), self._now(), ""
        self._unseen = ""

    def warnings(self) -> dict[str, str]:
        """Present problems, by kind. To be called every second or so."""
        loop, counts = self._loop, self._loop.counts
        found = dict(loop.model.warnings.texts)
        if problem := loop.problem():
            found[problem] = problem
        self._update_lags()
        found |= skew_warnings(self._lags)
        self._look_at_late()
        if self._late:
            found["late"] = self._late
        if self._unseen:
            found["unseen"] = self._unseen
        self._look_whether_idle()
        if self._idle:
            found["quiet"] = self._idle
        if (users := loop.histories) is not None and users.dropped:
            found["users"] = (
                f"more than {users.most:,} users have a history: {users.dropped:,} were dropped, the least recently "
                "used ones first, and begin again should they return"
            )
        if counts.minus_labels:
            others = counts.examples - counts.minus_labels - loop.model.metrics.clicked
            found["labels"] = "labels are read as -1/+1: -1 is no click" + (
                f", as 0 is ({others:,} rows)" if others else ""
            )
        return found

    def status(self, pacer: PublishPacer | None, *, ended: bool, **more: Any) -> Status:
        """The present status, with `more` members; asks the sources how far behind they are read."""
        loop, counts, model = self._loop, self._loop.counts, self._loop.model
        self._update_lags()
        (then_s, events), now_s = self._rate_since, self._now()
        self._rate_since = now_s, counts.events
        # The recent figures are in the online metrics of the whole model.
        recent = loop.online.recent() if loop.writes_online else {}
        return Status(
            model=model.spec.model.name,
            events=counts.events,
            examples=counts.examples,
            rate=(counts.events - events) / max(now_s - then_s, 1e-9),
            keys=model.table.count,
            logloss=model.metrics.recent_logloss(),
            version=pacer.version if pacer is not None else None,
            published=pacer.publisher.counts.as_dict() if pacer is not None else {},
            failed_checkpoints=loop.checkpoints.failed if loop.checkpoints is not None else 0,
            dead_letters=loop.dead_letters.count,
            lags=self._lags,
            lost={source.name: source.lost for source in self._sources},
            counts=asdict(counts),
            join=loop.joined(),
            users_dropped=loop.histories.dropped if loop.histories is not None else 0,
            behind=self.behind,
            normalized_entropy=model.warnings.normalized_entropy,
            inactive=pacer.publisher.inactive if pacer is not None else "",
            withheld=pacer.publisher.withheld if pacer is not None else "",
            variants=model.metrics.summary() if ended else {},
            outcomes={
                name: VariantOutcome.of(totals, recent.get(name))
                for name, totals in loop.online.totals().items()
            },
            ended=ended,
            **loop.of_partition(),
            **more,
        )

    def _look_at_late(self) -> None:
        """Judge the feedback of the last full minute, or at the end what is left of it."""
        joined, at_end = self._loop.joined(), self._loop.ended
        if not at_end and self._now() - self._late_since_s < LATE_EVERY_S:
            return
        more = {name: count - self._joined.get(name, 0) for name, count in joined.items()}
        late = more.get("late", 0) + more.get("out_of_order", 0)
        of = more.get("clicks", 0) + more.get("conversions", 0)
        if at_end and not of:
            return
        self._joined, self._late_since_s, self._late = joined, self._now(), ""
        self._unseen = ""
        of_seen = self._loop.model.spec.input.rows == "shown"  # else those without a click are unseen
        if (
            of_seen
            and more.get("unseen", 0) >= LATE_LEAST
            and not more.get("seen", 0) + more.get("activated", 0)
        ):
            self._unseen = (
                f"no `seen` or `activated` event came in a minute or more: {more['unseen']:,} rows were dropped, and "
                "all that is learned are clicks, so predictions become too high (docs/join.md, What was seen)"
            )
        if late >= LATE_LEAST and late > LATE_SHARE * of:
            self._late = (
                f"{late:,} of {of:,} clicks and conversions in a minute or less came after their impression's "
                "window or, in a file, out of order: their rows were learned as negatives, "
                f"{more.get('corrections', 0):,} corrected (docs/join.md, Late clicks)"
            )

    def _look_whether_idle(self) -> None:
        """Ask the sources why nothing is read, once that is so for long."""
        counts, now_s = self._loop.counts, self._now()
        # Feedback counts only after the first impression.
        useful = counts.events if counts.impressions or counts.examples or counts.rows else counts.bad_events
        if useful != self._useful:
            self._useful, self._useful_since_s, self._idle = useful, now_s, ""
        elif not self._idle and now_s - self._useful_since_s >= IDLE_AFTER_S:
            self._idle = idle_reason(self._loop.model.spec.model.name, self._sources, counts)

    def _update_lags(self) -> None:
        lags = self._loop.lags()
        self._lags = {source.name: lag for source, lag in zip(self._sources, lags, strict=True)}
        self.behind = any((lag.seconds or 0.0) > self._max_lag_s for lag in lags)


# --- Metrics ---


Value = float | None | Mapping[str, float | None] | Mapping[tuple[str, str], float | None]
"""Of a metric without labels beside `model` its number, of others the numbers by label; None has no sample."""

FAMILIES: dict[Family, Callable[[Status], Value]] = {}
"""Every metric of a trainer in order, with how it is read."""


def _declare(name: str, help: str, read: Callable[[Status], Value], *labels: str) -> None:
    FAMILIES[Family(f"ftrie_trainer_{name}", ("model", *labels), help)] = read


def _by_variant(name: str, help: str, read: Callable[[VariantOutcome], float | None]) -> None:
    _declare(name, help, lambda s: {each: read(one) for each, one in s.outcomes.items()}, "variant")


_EVENTS = {"impressions": "impression", "feedback": "feedback", "views": "view", "bad_events": "bad"}
_SKEWS = ("behind", "ahead", "ids_ahead", "clock_ahead")
_NOT_COUNTERS = ("pending", "pending_rows", "remembered", "waiting")

_declare(
    "events_total",
    "events taken, by kind",
    lambda s: {kind: s.counts[name] for name, kind in _EVENTS.items()},
    "kind",
)
_declare(
    "join_total",
    "events by outcome in the join",
    lambda s: {name: count for name, count in s.join.items() if name not in _NOT_COUNTERS},
    "what",
)
_declare("pending", "requests whose window is open", lambda s: s.join.get("pending", 0))
_declare("examples_total", "examples learned from", lambda s: s.examples)
_declare("dead_letters_total", "events and rows that could not be learned from", lambda s: s.dead_letters)
_declare("lost_total", "events deleted from a source before they were read", lambda s: s.lost, "source")
_declare("lag_events", "unread events", lambda s: {n: lag.events for n, lag in s.lags.items()}, "source")
_declare(
    "lag_seconds",
    "age of the oldest unread event",
    lambda s: {name: lag.seconds for name, lag in s.lags.items()},
    "source",
)
_declare(
    "clock_skew_seconds",
    "by how much clocks differ: of events behind, ahead of their arrival; of the store ids_ahead, clock_ahead",
    lambda s: {(name, of): getattr(lag, of) for name, lag in s.lags.items() for of in _SKEWS},
    "source",
    "of",
)
_declare(
    "versions_total",
    "versions published, and publications that failed; of those published: refused, held by the guard",
    lambda s: s.published,
    "kind",
)
_declare("rollbacks_total", "automatic rollbacks by the guard", lambda s: s.rolled_back)
_declare("version", "the last version published", lambda s: s.version)
_declare("active_version", "the version that is served", lambda s: s.active)
_declare(
    "inactive", "1 while an operator's pin keeps published versions inactive", lambda s: bool(s.inactive)
)
_declare("store_away", "1 while the store does not answer or rejects writes", lambda s: s.store_away)
_declare(
    "store_losses_total",
    "how often the store was found without the trainer's lease, so without its data",
    lambda s: s.store_losses,
)
_declare(
    "unknown_items_total",
    "rows skipped because the server did not know the item",
    lambda s: s.counts["unknown_items"],
)
_declare("users_dropped_total", "users whose histories were dropped for others", lambda s: s.users_dropped)
_declare("failed_checkpoints_total", "checkpoints that could not be written", lambda s: s.failed_checkpoints)
_declare("keys", "keys in the value table", lambda s: s.keys)
_declare("logloss", "progressive log-loss of the first variant's last window", lambda s: s.logloss)
_declare(
    "normalized_entropy",
    "of the worst variant in the last 1,000 rows or more; above 1.5 the model diverges",
    lambda s: s.normalized_entropy,
)
_declare("withheld", "1 while nothing is published: too many rows were rejected", lambda s: bool(s.withheld))
_declare(
    "waiting_seconds",
    "how long a partition has waited for the others at the end of its round; 0 while it learns",
    lambda s: {s.partition: s.waiting_s} if s.partition else {},
    "partition",
)
_by_variant("requests_total", "requests whose join window has closed, by variant", lambda each: each.requests)
_by_variant("impressions_total", "items that they showed", lambda each: each.impressions)
_by_variant("clicks_total", "items that were clicked", lambda each: each.clicks)
_by_variant("conversions_total", "items that were converted", lambda each: each.conversions)
_by_variant("ctr", "clicks an impression, over the last 120 minutes", lambda each: each.ctr)
_by_variant("ctr_error", "its standard error, between groups of cookies", lambda each: each.ctr_error)
_by_variant(
    "calibration",
    "predicted clicks a click (conversions with join.positive), over the same minutes; 1 is right",
    lambda each: each.calibration,
)
_by_variant(
    "calibration_error", "its standard error, between groups of cookies", lambda each: each.calibration_error
)


class StatusCollector(Collector):
    """Exports the last status it was given. Thread-safe: one reference is replaced."""

    def __init__(self) -> None:
        self._status: Status | None = None

    def show(self, status: Status) -> None:
        """Export this status from now on."""
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Every family, with its known samples."""
        status = self._status
        for family, read in FAMILIES.items():
            value = read(status) if status is not None else None
            numbers = value if isinstance(value, Mapping) else {(): value}
            yield family.metric(
                [
                    ((status.model, *((labels,) if isinstance(labels, str) else labels)), number)
                    for labels, number in numbers.items()
                    if status is not None and number is not None
                ]
            )


def serve_metrics(host: str, port: int) -> StatusCollector:
    """Serve metrics on an address of this machine. Raises InputError if the port cannot be opened."""
    registry, collector = CollectorRegistry(), StatusCollector()
    registry.register(collector)
    try:
        page, _ = start_http_server(port, host, registry)
        pause_where_none_is_accepted(page)
    except OSError as error:
        raise InputError(
            f"--metrics-port {port}: cannot listen on {host}: {port_taken(port, error)}"
        ) from error
    return collector
