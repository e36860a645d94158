"""A Grafana dashboard of the server's metrics.

Owns: the rows of panels, and the dashboard made from them. Never does: send it anywhere. Called by: `core dashboard`, which
prints it, `perses.py`, which has the same panels, and the test that every metric in it exists.

It is of Grafana's schema version 39 (Grafana 10 and later). The data source and the model are chosen at the top of the page.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import Any

from core_observers.metrics import PREFIX

SCHEMA_VERSION = 39
WIDTH = 24
HEIGHT = 8
PER_ROW = 3
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MODEL = 'model_name="$model_name"'
QUANTILES = (0.5, 0.9, 0.99)
METRIC = re.compile(r"([a-z][a-z0-9_]*)\{([^}]*)\}")
"""A metric in a query, and its label selectors."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram of the dashboard.

    unit:    Grafana's id of it.
    queries: name in the legend → expression, in which `NAME{}` stands for our metric of that name, of the chosen model.
    """

    title: str
    unit: str
    queries: dict[str, str]


def _quantiles(name: str) -> dict[str, str]:
    """Return the quantile queries of a histogram, over the chosen time."""
    queries: dict[str, str] = {}
    for quantile in QUANTILES:
        rates = f"sum by (le) (rate({name}_bucket{{}}[$__rate_interval]))"
        queries[f"p{quantile * 100:g}"] = f"histogram_quantile({quantile}, {rates})"
    return queries


def _rate(name: str) -> str:
    return f"sum(rate({name}{{}}[$__rate_interval]))"


def _mean(name: str) -> str:
    return f"{_rate(name + '_sum')} / {_rate(name + '_count')}"


PANELS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Load",
        (
            Panel(
                "Tokens a second",
                "short",
                {"prompts": _rate("prompt_tokens_total"), "generated": _rate("generation_tokens_total")},
            ),
            Panel(
                "Requests",
                "short",
                {
                    "running": "sum(num_requests_running{})",
                    "wait for room": 'sum(num_requests_waiting_by_reason{reason="capacity"})',
                    "wait for KV or a grammar": 'sum(num_requests_waiting_by_reason{reason="deferred"})',
                },
            ),
            Panel(
                "Ended a second",
                "reqps",
                {"{{finished_reason}}": "sum by (finished_reason) (rate(request_success_total{}[$__rate_interval]))"},
            ),
        ),
    ),
    (
        "Latency",
        (
            Panel("Time to the first token", "s", _quantiles("time_to_first_token_seconds")),
            Panel("Time between tokens", "s", _quantiles("inter_token_latency_seconds")),
            Panel("Whole request", "s", _quantiles("e2e_request_latency_seconds")),
            Panel(
                "Where the time goes (mean)",
                "s",
                {
                    "queue": _mean("request_queue_time_seconds"),
                    "prefill": _mean("request_prefill_time_seconds"),
                    "decode": _mean("request_decode_time_seconds"),
                },
            ),
            Panel("Time in the queue", "s", _quantiles("request_queue_time_seconds")),
            Panel("Stalled tokens a second", "short", {"stalled": _rate("stalled_tokens_total")}),
        ),
    ),
    (
        "KV cache and steps",
        (
            Panel("KV cache in use", "percentunit", {"used": "max(kv_cache_usage_perc{})"}),
            Panel(
                "Prefix cache hits",
                "percentunit",
                {
                    "device": f"{_rate('prefix_cache_hits_total')} / {_rate('prefix_cache_queries_total')}",
                    "memory and disk": (
                        f"{_rate('external_prefix_cache_hits_total')} / {_rate('external_prefix_cache_queries_total')}"
                    ),
                },
            ),
            Panel("Tokens of a step", "short", _quantiles("iteration_tokens_total")),
            Panel("Preemptions a second", "short", {"preemptions": _rate("num_preemptions_total")}),
            Panel(
                "Drafts accepted",
                "percentunit",
                {
                    "accepted": (
                        f"{_rate('spec_decode_num_accepted_tokens_total')} / "
                        f"{_rate('spec_decode_num_draft_tokens_total')}"
                    )
                },
            ),
            Panel("Prompt tokens from the cache", "short", {"cached": _rate("prompt_tokens_cached_total")}),
        ),
    ),
    (
        "Requests and faults",
        (
            Panel("Prompt tokens of a request", "short", _quantiles("request_prompt_tokens")),
            Panel("Generated tokens of a request", "short", _quantiles("request_generation_tokens")),
            Panel(
                "Faults",
                "short",
                {
                    "engine restarts ({{cause}})": "sum by (cause) (increase(engine_restarts_total{}[$__rate_interval]))",
                    "failed steps": "sum(increase(failed_steps_total{}[$__rate_interval]))",
                    "timeouts": "sum(increase(request_timeouts_total{}[$__rate_interval]))",
                },
            ),
        ),
    ),
)


def dashboard(prefix: str = PREFIX) -> dict[str, Any]:
    """Return the dashboard in the form that Grafana imports. prefix: of the metrics."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in PANELS:
        panels.append(_heading(len(panels) + 1, title, y))
        y += 1
        for index, panel in enumerate(row):
            column = index % PER_ROW
            line = index // PER_ROW
            place = {"h": HEIGHT, "w": WIDTH // PER_ROW, "x": column * WIDTH // PER_ROW, "y": y + line * HEIGHT}
            panels.append(_diagram(len(panels) + 1, panel, place, prefix))
        y += HEIGHT * -(-len(row) // PER_ROW)
    return {
        "uid": "core-engine",
        "title": "core",
        "description": "Metrics of core servers.",
        "tags": ["core", "llm"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables(prefix)},
        "annotations": {"list": []},
        "panels": panels,
    }


def expression(query: str, prefix: str) -> str:
    """Return the query with the full names of metrics, for the chosen model only."""

    def whole(found: re.Match[str]) -> str:
        name, more = found.groups()
        labels = f"{MODEL},{more}" if more else MODEL
        return f"{prefix}{name}{{{labels}}}"

    return METRIC.sub(whole, query)


def _heading(number: int, title: str, y: int) -> dict[str, Any]:
    place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _diagram(number: int, panel: Panel, place: dict[str, int], prefix: str) -> dict[str, Any]:
    targets: list[dict[str, Any]] = []
    for letter, (legend, query) in zip(string.ascii_uppercase, panel.queries.items(), strict=False):
        target = {"refId": letter, "datasource": SOURCE, "expr": expression(query, prefix), "legendFormat": legend}
        targets.append(target)
    defaults = {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 8, "showPoints": "never"}}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _variables(prefix: str) -> list[dict[str, Any]]:
    names = f"label_values({prefix}num_requests_running, model_name)"
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "model_name",
            "label": "Model",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": names, "refId": "models"},
            "refresh": 2,
        },
    ]
