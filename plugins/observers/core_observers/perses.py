"""The dashboard in the form of Perses.

Owns: what of a panel becomes what in Perses' model (`kind: Dashboard`). Never does: choose panels or write queries, which are
those of the Grafana dashboard. Called by: `core dashboard --perses`, and the test that every metric in it exists.

Queries go to the project's default data source of the kind PrometheusDatasource.
"""

from __future__ import annotations

from typing import Any

from core_observers.dashboard import HEIGHT, PANELS, PER_ROW, WIDTH, Panel, expression
from core_observers.metrics import PREFIX

UNITS = {"short": "decimal", "s": "seconds", "reqps": "requests/sec", "percentunit": "percent-decimal"}
"""{unit of Grafana: that of Perses}."""


def perses_dashboard(prefix: str = PREFIX) -> dict[str, Any]:
    """Return the dashboard as Perses imports it, for its project `core`. prefix: of the metrics."""
    panels: dict[str, Any] = {}
    layouts: list[dict[str, Any]] = []
    for title, row in PANELS:
        items: list[dict[str, Any]] = []
        for index, panel in enumerate(row):
            name = f"panel{len(panels) + 1}"
            panels[name] = _panel(panel, prefix)
            items.append(_item(index, name))
        display = {"title": title, "collapse": {"open": True}}
        layouts.append({"kind": "Grid", "spec": {"display": display, "items": items}})
    return {
        "kind": "Dashboard",
        "metadata": {"name": "core-engine", "project": "core"},
        "spec": {
            "display": {"name": "core", "description": "Metrics of core servers."},
            "duration": "30m",
            "refreshInterval": "10s",
            "variables": [_model(prefix)],
            "panels": panels,
            "layouts": layouts,
        },
    }


def _item(index: int, name: str) -> dict[str, Any]:
    """Return the place of a row's panel with this index."""
    width = WIDTH // PER_ROW
    return {
        "x": index % PER_ROW * width,
        "y": index // PER_ROW * HEIGHT,
        "width": width,
        "height": HEIGHT,
        "content": {"$ref": f"#/spec/panels/{name}"},
    }


def _panel(panel: Panel, prefix: str) -> dict[str, Any]:
    queries = [
        {
            "kind": "TimeSeriesQuery",
            "spec": {
                "plugin": {
                    "kind": "PrometheusTimeSeriesQuery",
                    "spec": {"query": expression(query, prefix), "seriesNameFormat": legend},
                }
            },
        }
        for legend, query in panel.queries.items()
    ]
    chart = {"yAxis": {"min": 0, "format": {"unit": UNITS[panel.unit]}}, "legend": {"position": "bottom"}}
    return {
        "kind": "Panel",
        "spec": {
            "display": {"name": panel.title},
            "plugin": {"kind": "TimeSeriesChart", "spec": chart},
            "queries": queries,
        },
    }


def _model(prefix: str) -> dict[str, Any]:
    """Return the choice of a model at the top of the page."""
    values = {"labelName": "model_name", "matchers": [f"{prefix}num_requests_running"]}
    return {
        "kind": "ListVariable",
        "spec": {
            "name": "model_name",
            "display": {"name": "Model"},
            "allowMultiple": False,
            "allowAllValue": False,
            "plugin": {"kind": "PrometheusLabelValuesVariable", "spec": values},
        },
    }
