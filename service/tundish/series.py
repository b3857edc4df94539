"""The counters of a server as Prometheus's metrics: names, units, what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["series"]


class _Of(NamedTuple):
    """One metric: its name (of a counter with `_total`), its meaning, and where it is found."""

    name: str
    text: str
    key: str


_SERVER = [
    _Of("connections", "Connections that are open.", "connections"),
    _Of("memory_used_bytes", "Memory that counts against the limit.", "memory.used"),
    _Of("memory_limit_bytes", "The limit, option memory_limit.", "memory.limit"),
    _Of("memory_peak_bytes", "The most that segments and heap have taken.", "memory.peak"),
    _Of("memory_capacity_bytes", "Segments of shared memory, lent or free.", "memory.capacity"),
    _Of("memory_lent_bytes", "Slots of shared memory that are in use.", "memory.lent"),
    _Of("memory_heap_bytes", "Heap that batches take.", "memory.heap"),
    _Of("memory_queued_bytes", "Messages that wait for clients to read.", "memory.queued"),
    _Of("slots", "Slots in all segments of shared memory.", "slots.total"),
    _Of("slots_lent", "Slots in use: by clients, or by batches still here.", "slots.lent"),
    _Of("slots_leased", "Slots that clients hold.", "slots.leased"),
    _Of("slots_quarantined", "Slots that lost clients may still see.", "slots.quarantined"),
]

_WAITS = [
    _Of(
        "consumer_wait_seconds_total", "Waits for the loader, or a slower stream.", "consumer_wait"
    ),
    _Of("loader_wait_seconds_total", "Waits of the loader for the consumer.", "loader_wait"),
]

_FEED = [
    _Of("feed_streams", "Streams that are open.", "streams"),
    _Of("feed_rate_batches_per_second", "Cells sent, the rates of its open streams.", "rate"),
    _Of("feed_slots_lent", "Slots that clients hold by open streams.", "slots"),
    _Of("feed_streams_total", "Streams that began, ended ones too.", "totals.streams"),
    _Of("feed_batches_total", "Batches sent to all streams.", "totals.batches"),
    _Of("feed_produced_batches_total", "Batches made, by all its runs.", "totals.produced"),
    _Of("feed_samples_total", "Samples in the batches sent.", "totals.samples"),
    _Of("feed_bytes_total", "Bytes of the batches, lent or sent.", "totals.bytes"),
    _Of("feed_errors_total", "Batches that were errors.", "totals.errors"),
    _Of("feed_skipped_samples_total", "Samples left out by on_error=skip.", "totals.skipped"),
    _Of("feed_redelivered_batches_total", "Batches that another stream had.", "totals.redelivered"),
    _Of("feed_detached_total", "Times a stream fell out of the share window.", "totals.detached"),
    *[_Of(f"feed_{name}", text, f"totals.{key}") for name, text, key in _WAITS],
]

_RUN = [
    _Of("run_start_batch", "The batch it began at.", "start"),
    _Of("run_position_batch", "The batch it hands out next.", "position"),
    _Of("run_batches", "Batches of this run in all.", "total"),
    _Of("run_rate_batches_per_second", "Cells handed out, in the last five seconds.", "rate"),
    _Of("run_ready_batches", "Batches made that nobody took yet.", "ready"),
    _Of("run_working_batches", "Batches being made.", "working"),
    _Of("run_held_batches", "Batches held for streams that lag or join late.", "held"),
    _Of("run_held_bytes", "Bytes of these.", "bytes"),
    _Of("run_lag_batches", "Batches that its last stream is behind it.", "lag"),
    _Of("run_streams", "Streams that it serves.", "streams"),
    _Of("run_slots_lent", "Slots that clients hold by its streams.", "slots"),
    _Of("run_waiting_seconds", "How long it has been waiting for a stream by now.", "waiting"),
    _Of("run_errors_total", "Batches that were errors.", "errors"),
    _Of("run_skipped_samples_total", "Samples left out by on_error=skip.", "skipped"),
    _Of("run_redelivered_batches_total", "Batches given to another stream again.", "redelivered"),
    # No counters: with a stream its part goes.
    _Of("run_consumer_wait_seconds", "Consumer wait of its present streams.", "consumer_wait"),
    _Of("run_loader_wait_seconds", "Loader wait of its present streams.", "loader_wait"),
]

_STREAM = [
    _Of("stream_start_batch", "The batch it began at.", "start"),
    _Of("stream_position_batch", "The batch it is sent next.", "position"),
    _Of("stream_rate_batches_per_second", "Cells sent, in the last five seconds.", "rate"),
    _Of("stream_lag_batches", "Cells sent that it has not consumed.", "lag"),
    _Of("stream_behind_batches", "Cells that its run has for it, not sent yet.", "behind"),
    _Of("stream_joined_streams", "Streams of its gathering group that are there.", "joined"),
    _Of("stream_credit_batches", "Batches it may be sent.", "credits.batches"),
    _Of("stream_slots_lent", "Slots that its client holds by it.", "slots"),
    _Of("stream_batches_total", "Batches sent.", "batches"),
    _Of("stream_samples_total", "Samples in these batches.", "samples"),
    _Of("stream_bytes_total", "Bytes of these batches, lent or sent.", "bytes"),
    _Of("stream_errors_total", "Batches that were errors.", "errors"),
    _Of("stream_skipped_samples_total", "Samples left out by on_error=skip.", "skipped"),
    _Of("stream_redelivered_batches_total", "Batches that another stream had.", "redelivered"),
    _Of("stream_detached_total", "Times it fell out of the share window.", "detached"),
    _Of("stream_waited_for_seconds_total", "Time others of its run waited for it.", "waited_for"),
    *[_Of(f"stream_{name}", text, key) for name, text, key in _WAITS],
]

_FEED_LABELS = ["feed"]
_RUN_LABELS = ["feed", "epoch", "rank", "run"]
_STREAM_LABELS = ["feed", "epoch", "stream", "consumer"]


def series(counters: dict[str, Any] | None) -> list[Metric]:
    """The metrics of what `Server.counters` gave; None where it gave no answer."""
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    up = GaugeMetricFamily("tundish_up", "Whether the server's event loop answered.")
    up.add_metric([], float(counters is not None))
    if counters is None:
        return [up]
    server = {key: str(value) for key, value in counters["server"].items()}
    streams = [_stream(stream) for stream in counters["streams"]]
    return [
        up,
        InfoMetricFamily("tundish_server", "The server.", server),
        *_family(_SERVER, [], [([], counters)]),
        *_family(_FEED, _FEED_LABELS, [([feed["feed"]], feed) for feed in counters["feeds"]]),
        *_family(_RUN, _RUN_LABELS, [_run(run, counters) for run in counters["runs"]]),
        *_family(_STREAM, _STREAM_LABELS, streams),
        _waited_for(counters["runs"]),
    ]


def _family(
    metrics: Sequence[_Of],
    labels: list[str],
    rows: Sequence[tuple[list[str], Mapping[str, Any]]],
) -> list[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    families: list[Metric] = []
    for name, text, key in metrics:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(f"tundish_{name}", text, labels=labels)
        for values, row in rows:
            value = _find(row, key)
            if value is not None:  # the total of an epoch whose length nobody knows
                family.add_metric(values, value)
        families.append(family)
    return families


def _find(row: Mapping[str, Any], key: str) -> float | None:
    value: Any = row
    for name in key.split("."):
        value = value[name]
    return value  # type: ignore[no-any-return]


def _run(run: dict[str, Any], counters: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    own = [stream for stream in counters["streams"] if stream["run"] == run["run"]]
    row = {
        "redelivered": 0,
        **run,
        "working": run["claimed"] - run["produced"],
        # Of a split epoch a stream has no place.
        "lag": max((run["position"] - stream["position"] for stream in own), default=0)
        if run["split"] is None
        else None,
        "slots": sum(stream["slots"] for stream in own),
        "consumer_wait": sum(stream["consumer_wait"] for stream in own),
        "loader_wait": sum(stream["loader_wait"] for stream in own),
    }
    return [run["feed"], str(run["epoch"]), str(run["rank"]), str(run["run"])], row


def _stream(stream: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    client = stream["client"]
    number = f"{stream['connection']}.{stream['stream']}"
    labels = [stream["feed"], str(stream["epoch"]), number, f"{client['name']} ({client['pid']})"]
    return labels, {**stream, "batches": stream["delivered"] - stream["errors"]}


def _waited_for(runs: list[dict[str, Any]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        "tundish_run_waited_for_seconds",
        "How long the others have been waiting for this consumer by now (on_lag=wait).",
        labels=["feed", "epoch", "run", "consumer"],
    )
    for run in runs:
        for consumer in run["waiting_for"]:
            where = [run["feed"], str(run["epoch"]), str(run["run"]), consumer]
            family.add_metric(where, run["waiting"])
    return family
