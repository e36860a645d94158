"""Arguments choose KV connectors: the engine's own by their arguments, others by name."""

import pytest

from core.api.errors import ConfigError
from core_config.resolve import resolve


def connectors(model, **given):
    """Names of the connectors that a configuration has, and the scope of explanations."""
    config = resolve({"model": str(model), **given}, context="serve", environ={}).engine
    rows = [row.name for row in config.plugins.table if row.kind == "kv_connector"]
    assert tuple(rows) == config.plugins.kv_connectors
    return rows, config.cache.explains


def test_arguments_of_the_cache_choose_the_engines_own(tiny_llama, tmp_path):
    assert connectors(tiny_llama) == (["explain"], "own")
    assert connectors(tiny_llama, explain_answers="off") == ([], "off")
    everything = {
        "kv_offloading_size": 0.1,
        "kv_offloading_disk_path": str(tmp_path),
        "kv_events_config": {"enable_kv_cache_events": True},
        "kv_cache_metrics": True,
    }
    assert connectors(tiny_llama, **everything)[0] == ["tiers", "events", "residency", "explain"]


def test_explanations_that_nobody_asked_for_go_with_their_plugin(tiny_llama):
    assert connectors(tiny_llama, plugins="no:kv_connector.explain") == ([], "off")
    with pytest.raises(ConfigError, match="--explain-answers"):
        connectors(tiny_llama, plugins="no:kv_connector.explain", explain_answers="all")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"kv_connector": "nixl"}, "--kv-transfer-config.kv_connector nixl: .*known: "),
        ({"kv_connector": "tiers"}, "by arguments of its own, such as --kv-offloading-size"),
        (
            {"kv_connector_extra_config": {"a": 1}},
            "names no connector; expected --kv-transfer-config.kv_connector NAME",
        ),
        ({"kv_connector": "nixl", "kv_role": "kv_producer"}, "kv_role.*expected one of 'kv_both'"),
        ({"kv_connector": "nixl", "kv_port": 5}, "kv.port"),
    ],
)
def test_mistakes_are_named(tiny_llama, given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        connectors(tiny_llama, kv_transfer_config=given)


def test_connectors_are_named_and_have_arguments_of_their_own(tiny_llama, tmp_path):
    own = {"directory": str(tmp_path), "size": 2}
    given = {"kv_connectors": ["file"], "kv_connectors_config": {"file": own}, "kv_offloading_size": 0.1}
    assert connectors(tiny_llama, **given)[0] == ["tiers", "explain", "file"]
    config = resolve({"model": str(tiny_llama), **given}, context="serve", environ={}).engine
    assert config.plugins.arguments["kv_connector.file"] == own
    transfer = {"kv_connector": "file", "kv_connector_extra_config": own}
    config = resolve({"model": str(tiny_llama), "kv_transfer_config": transfer}, context="serve", environ={}).engine
    assert config.plugins.arguments["kv_connector.file"] == own


def test_kept_blocks_have_a_connector_where_engines_are_replaced(tiny_llama):
    assert connectors(tiny_llama, keep_kv=True)[0] == ["keep", "explain"]
    assert connectors(tiny_llama, keep_kv=True, engine_restarts=0)[0] == ["explain"]
    assert connectors(tiny_llama, kv_connectors=["shm"])[0] == ["explain", "shm"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"kv_connectors": ["keep"]}, "by arguments of its own"),
        ({"kv_connectors": ["nixl"]}, "--kv-connectors nixl: .*known: "),
        ({"kv_connectors": ["tiers"]}, "by arguments of its own, such as --kv-offloading-size"),
        ({"kv_connectors": ["file"]}, "--kv-connectors-config.file.directory: required"),
        ({"kv_connectors": ["file", "file"]}, "already named by --kv-connectors file"),
        ({"kv_connectors": ["file"], "kv_transfer_config": {"kv_connector": "file"}}, "already named by"),
        ({"kv_connectors_config": {"file": {"directory": "x"}}}, "this KV connector is not used"),
        ({"kv_connectors_config": {"nixl": {}}}, "no such KV connector"),
    ],
)
def test_mistakes_in_names_are_named(tiny_llama, given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        connectors(tiny_llama, **given)
