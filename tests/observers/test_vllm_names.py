"""Every metric of vLLM's is there with its kind and labels, or left out by name with a reason that the documentation tells.

`vllm_metrics.json` has the metrics of vLLM 0.30 without their prefix: kind, then labels beside those that all of them have.
"""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.api.config import CacheConfig
from core.api.stats import SchedulerStats
from core_kv_connectors.kv_residency import RESIDENCY_BUCKETS, RESIDENCY_METRICS
from core_observers.hidden_names import HIDDEN
from core_observers.metrics import ServerMetrics
from core_observers.step_sizes import STEP_BOUNDS
from core_observers.vllm_names import ABSENT, THEIRS
from core_observers.work import Work

EXPECTED: dict[str, list[str]] = json.loads(Path(__file__).with_name("vllm_metrics.json").read_text())
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "observability.md"
COMMON = {"model_name", "engine", "le"}


@pytest.fixture(scope="module")
def exported() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of every metric under vLLM's names, from a server that has done all there is to count."""
    stats = SchedulerStats(
        step_sizes=[0] * (len(STEP_BOUNDS) + 2),
        kv_residency=[[0.0] * (len(RESIDENCY_BUCKETS) + 2) for _ in RESIDENCY_METRICS],
        spec_accepted_by_place=[3, 1],
        work={"steps": 1},
    )
    adapters = SimpleNamespace(max_loras=2, in_use=lambda: (["sql"], []))
    metrics = ServerMetrics(
        "tiny", lambda: stats, CacheConfig(), vllm_names=True, adapters=adapters, work_of=lambda _: Work(1.0, 2.0, 3.0)
    )
    found: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(asyncio.run(metrics.render()).decode()):
        if family.name.startswith(THEIRS):
            labels = {label for sample in family.samples for label in sample.labels}
            found[family.name.removeprefix(THEIRS)] = (family.type, labels)
    return found


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - set(ABSENT)))
def test_a_metric_is_there_as_vllm_has_it(name: str, exported: dict[str, tuple[str, set[str]]]) -> None:
    kind, *labels = EXPECTED[name]
    assert exported[name][0] == kind
    own = exported[name][1] - COMMON
    assert own == set(labels) or name == "cache_config_info"


def test_what_is_left_out_is_told(exported: dict[str, tuple[str, set[str]]]) -> None:
    assert set(ABSENT) <= set(EXPECTED)
    assert not set(ABSENT) & set(exported)
    text = DOCUMENTATION.read_text()
    for name, reason in ABSENT.items():
        assert f"`{name}`" in text and reason in text


@pytest.mark.parametrize(
    ("version", "names"),
    [
        (None, set()),
        ("0.9.2", set(HIDDEN)),
        ("0.11", {"time_per_output_token_seconds"}),
        ("0.12", set()),
    ],
)
def test_hidden_names_come_back_with_the_values_of_the_present_ones(version: str | None, names: set[str]) -> None:
    stats = SchedulerStats(prefix_queries=7, prefix_hits=3, kv_cache_usage=0.25)
    metrics = ServerMetrics("tiny", lambda: stats, vllm_names=True, hidden_version=version)
    families = {
        family.name: family for family in text_string_to_metric_families(asyncio.run(metrics.render()).decode())
    }
    assert {THEIRS + name for name in names} == {THEIRS + name for name in HIDDEN} & set(families)
    for name in names:
        present = families[THEIRS + HIDDEN[name][0]]
        hidden = families[THEIRS + name]
        assert (hidden.type, [sample.value for sample in hidden.samples]) == (
            present.type,
            [sample.value for sample in present.samples],
        )
