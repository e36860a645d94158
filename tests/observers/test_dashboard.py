"""The dashboard asks for metrics that a server has, and is what Grafana imports."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.api.stats import SchedulerStats
from core.commands.main import main
from core_config.served.server_config import ServerConfig
from core_observers.step_sizes import STEP_BOUNDS
from tests.apis.conftest import run_server
from tests.apis.fake_engine import set_state

NAME = re.compile(r"\b(?:core|vllm):[a-z0-9_]+")


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Samples of a server that has computed something, and their labels."""
    with run_server(ServerConfig(uvicorn_log_level="warning", vllm_metrics=True)) as running:
        running.http.post("/v1/completions", json={"prompt": "Hi"})
        set_state(running.engine, SchedulerStats(step_sizes=[0] * (len(STEP_BOUNDS) + 2)))
        running.engine.restarts.restarted("crash")
        text = running.http.get("/metrics").text
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["dashboard", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def targets(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        yield from panel.get("targets", ())


@pytest.mark.parametrize("words", [[], ["--vllm-metrics"]])
def test_every_expression_asks_for_what_is_exported(
    words: list[str], exported: dict[str, set[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = "vllm:" if words else "core:"
    board = printed(words, capsys)
    expressions = [target["expr"] for target in targets(board)]
    assert len(expressions) > 20
    variables = [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    for expression in [*expressions, *variables]:
        names = NAME.findall(expression)
        assert names, expression
        for name in names:
            assert name.startswith(prefix) and name in exported, name
        for grouped in re.findall(r"by \(([a-z_]+)\)", expression):
            assert grouped in exported[names[0]], expression
        assert expression.count("(") == expression.count(")")
    assert all(expression.count('model_name="$model_name"') >= 1 for expression in expressions)


@pytest.mark.parametrize("words", [[], ["--vllm-metrics"]])
def test_perses_has_the_panels_and_queries_of_grafana(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    board = printed(words, capsys)
    spec = printed([*words, "--perses"], capsys)["spec"]
    ours = {panel["title"]: panel["targets"] for panel in board["panels"] if panel["type"] == "timeseries"}
    theirs = {panel["spec"]["display"]["name"]: panel["spec"] for panel in spec["panels"].values()}
    assert theirs.keys() == ours.keys()
    for title, panel in theirs.items():
        queries = [query["spec"]["plugin"]["spec"] for query in panel["queries"]]
        assert [query["query"] for query in queries] == [target["expr"] for target in ours[title]]
        assert [query["seriesNameFormat"] for query in queries] == [target["legendFormat"] for target in ours[title]]
    (variable,) = spec["variables"]
    assert variable["spec"]["name"] == "model_name" and variable["spec"]["plugin"]["spec"]["matchers"]


def test_every_panel_has_one_place_in_perses(capsys: pytest.CaptureFixture[str]) -> None:
    spec = printed(["--perses"], capsys)["spec"]
    places = [item for grid in spec["layouts"] for item in grid["spec"]["items"]]
    named = [item["content"]["$ref"].removeprefix("#/spec/panels/") for item in places]
    assert sorted(named) == sorted(spec["panels"])
    for grid in spec["layouts"]:
        taken: set[tuple[int, int]] = set()
        for item in grid["spec"]["items"]:
            cells = {(item["x"] + x, item["y"] + y) for x in range(item["width"]) for y in range(item["height"])}
            assert not cells & taken and max(x for x, _ in cells) < 24
            taken |= cells


def test_panels_are_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    board = printed([], capsys)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert len(letters) == len(set(letters))
        assert panel["type"] in ("row", "timeseries") and panel["title"]


@pytest.mark.parametrize("words", [[], ["--vllm-metrics"]])
def test_grafanas_published_schema_knows_every_key(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    board = printed(words, capsys)
    read = json.loads(json.dumps(models.Dashboard.from_json(board), cls=JSONEncoder))
    assert list(lost(board, read)) == []
    board["panels"][1]["fieldConfig"]["defaults"]["custom"]["fillOpacty"] = 1
    read = json.loads(json.dumps(models.Dashboard.from_json(board), cls=JSONEncoder))
    assert list(lost(board, read)) == [".panels[1].fieldConfig.defaults.custom.fillOpacty"]


def lost(given: Any, read: Any, path: str = "") -> Iterator[str]:
    """Where `given` says something that `read` does not."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            if key in read:
                yield from lost(value, read[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for number, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif given != read:
        yield path


def test_other_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--nothing"]) == 2
    assert "core dashboard" in capsys.readouterr().err
