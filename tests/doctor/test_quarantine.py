"""A plugin in quarantine is left out where something else does its work, and told of; another version of it is free again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.api.config import ResolvedPlugin
from core.api.errors import ConfigError
from core_config.leaving_out import without
from core_config.resolve import resolve
from core_observers.runs.quarantine import Culprit, add_culprits
from core_observers.runs.run import Package, digest_of_module
from tests.doctor.packages import Plugin, install

ATTENTION = Plugin("dqatt", "attention")
PROCESSOR = Plugin("dqproc", "logits_processor")


def row(kind: str, name: str, distribution: str = "core-mine") -> ResolvedPlugin:
    return ResolvedPlugin(kind=kind, name=name, target="core_mine.m", distribution=distribution, version="1")


@pytest.mark.parametrize(
    ("plugin", "values", "expected"),
    [
        (row("kernels", "fast"), {"kernels": ["fast", "auto"]}, {"kernels": ["auto"]}),
        (row("kernels", "fast"), {"kernels": ["fast"]}, {"kernels": ["auto"]}),
        (row("kernels", "fast"), {"kernels": ["core-mine:fast", "other:fast"]}, {"kernels": ["other:fast"]}),
        (row("kernels", "fast"), {"kernels_config": {"fast": {"a": 1}, "x": {}}}, {"kernels_config": {"x": {}}}),
        (row("attention", "a"), {"attention_backend": "full=a,sliding=b"}, {"attention_backend": "sliding=b"}),
        (row("attention", "a"), {"attention_backend": "a"}, {"attention_backend": None}),
        (row("policy", "p"), {"scheduling_policy": "p"}, {"scheduling_policy": "fcfs"}),
        (row("speculative", "s"), {"speculative_config": {"method": "s", "k": 1}}, {"speculative_config": None}),
        (row("speculative", "s"), {"speculative_config": {"method": "t"}}, {}),
        (row("loader", "l"), {"load_format": "l", "model_loader_extra_config": {"a": 1}},
         {"load_format": "auto", "model_loader_extra_config": {}}),
        (row("loader", "l"), {"load_format": "auto", "model_loader_extra_config": {"a": 1}}, {}),
        (row("logits_processor", "l"), {"logits_processors": ["k", "l"]}, {"logits_processors": ["k"]}),
        (row("kernels", "fast"), {"plugins": "kernels.fast,no:x"}, {"plugins": "no:x"}),
        (row("kernels", "fast"), {"plugins": "fast"}, {"plugins": None}),
        (row("kernels", "fast"), {"kernels": ["auto"], "plugins": "other"}, {}),
    ],
)  # fmt: skip
def test_arguments_are_written_without_a_plugin(
    plugin: ResolvedPlugin, values: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = repr(values)
    assert without(plugin, values) == expected
    assert repr(values) == before


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    for plugin in (ATTENTION, PROCESSOR):
        install(folder, plugin, "1.0")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def package(plugin: Plugin) -> Package:
    module = f"core_{plugin.name}"
    return Package(f"core-{plugin.name}", "1.0", module, digest_of_module(module), (f"{plugin.kind}.{plugin.name}",))


def resolved(model: Path, canary: Path, **more: Any) -> Any:
    arguments = {"model": str(model), "device": "cpu", "max_model_len": 64, "state_canary": str(canary), **more}
    return resolve(arguments, context="explain", environ={})


def test_a_culprit_that_can_be_replaced_is_left_out_and_told_of(tiny_llama: Path, tmp_path: Path, site: Path) -> None:
    other_code = Package("core-dqatt", "0.9", "core_dqatt", "f" * 16, ("attention.dqatt",))
    culprits = [Culprit(package(ATTENTION), "changed tokens since run 3"), Culprit(other_code, "was slow")]
    add_culprits(tmp_path, culprits)
    kept = resolved(tiny_llama, tmp_path, attention_backend="dqatt")
    assert kept.engine.plugins.attention == {"full": "dqatt"}, "without the argument the list changes nothing"
    found = resolved(tiny_llama, tmp_path, attention_backend="dqatt", quarantine_plugins=True)
    assert found.engine.plugins.attention["full"] != "dqatt"
    [warning] = [text for text in found.warnings if "--quarantine-plugins" in text]
    assert "attention.dqatt (core-dqatt 1.0) is left out: it changed tokens since run 3" in warning
    _, origin, reason = found.arguments["attention_backend"]
    assert (origin, reason) == ("derived", "attention.dqatt is in quarantine")
    told = [candidate for each in found.selections for candidate in each.candidates if candidate.name == "dqatt"]
    assert any("in quarantine: it changed tokens since run 3" in reason for each in told for reason in each.reasons)
    (site / "core_dqatt" / "backend.py").write_text((site / "core_dqatt" / "backend.py").read_text() + "# repaired\n")
    free = resolved(tiny_llama, tmp_path, attention_backend="dqatt", quarantine_plugins=True)
    assert free.engine.plugins.attention == {"full": "dqatt"}


def test_a_culprit_that_nothing_replaces_stays_and_is_told_of(tiny_llama: Path, tmp_path: Path, site: Path) -> None:
    add_culprits(tmp_path, [Culprit(package(PROCESSOR), "is slower since run 1")])
    found = resolved(tiny_llama, tmp_path, logits_processors=["dqproc"], quarantine_plugins=True)
    assert found.engine.plugins.logits_processors == ("dqproc",)
    [warning] = [text for text in found.warnings if "--quarantine-plugins" in text]
    assert "Nothing else does the work of this logits_processor plugin, so it stays; install another version" in warning


def test_a_damaged_list_refuses_the_start(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "quarantine.json").write_text("{")
    with pytest.raises(ConfigError, match="Remove it to empty the quarantine"):
        resolved(tiny_llama, tmp_path, quarantine_plugins=True)
