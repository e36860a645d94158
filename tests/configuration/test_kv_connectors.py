"""Arguments choose KV connectors: the engine's own by their arguments, others by name."""

import pytest

from core.api.errors import ConfigError
from core_config.resolve import resolve
from core_config.script_objects import MambaConfig


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
        ({"kv_connector": "unknown"}, "--kv-transfer-config.kv_connector unknown: .*known: "),
        ({"kv_connector": "tiers"}, "by arguments of its own, such as --kv-offloading-size"),
        (
            {"kv_connector_extra_config": {"a": 1}},
            "names no connector; expected --kv-transfer-config.kv_connector NAME",
        ),
        ({"kv_connector": "tcp", "kv_role": "kv_sender"}, "kv_role.*expected one of 'kv_both'"),
        ({"kv_connector": "file", "kv_role": "kv_producer"}, "kv_role kv_producer: only the connectors tcp, nixl"),
        ({"kv_connector": "file", "kv_port": 5}, "kv_port 5: only the connectors tcp, nixl"),
        ({"kv_connector": "tcp", "kv_port": 70000}, "kv.port"),
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
        ({"kv_connectors": ["unknown"]}, "--kv-connectors unknown: .*known: "),
        ({"kv_connectors": ["tiers"]}, "by arguments of its own, such as --kv-offloading-size"),
        ({"kv_connectors": ["disk"]}, "by arguments of its own, such as --kv-offloading-disk-path"),
        ({"kv_connectors": ["file"]}, "--kv-connectors-config.file.directory: required"),
        ({"kv_connectors": ["file", "file"]}, "already named by --kv-connectors file"),
        ({"kv_connectors": ["file"], "kv_transfer_config": {"kv_connector": "file"}}, "already named by"),
        ({"kv_connectors_config": {"file": {"directory": "x"}}}, "this KV connector is not used"),
        ({"kv_connectors_config": {"unknown": {}}}, "no such KV connector"),
    ],
)
def test_mistakes_in_names_are_named(tiny_llama, given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        connectors(tiny_llama, **given)


def resolved(model, **given):
    """The configuration of an engine with one connector in vLLM's form, given as a mapping of its keys."""
    return resolve({"model": str(model), "explain_answers": "off", **given}, context="serve", environ={})


def transfer(name, **own):
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": own}


@pytest.mark.parametrize("name", ["OffloadingConnector", "SimpleCPUOffloadConnector"])
def test_connectors_to_host_memory_and_disk_are_arguments(tiny_llama, tmp_path, name):
    own = {
        "cpu_bytes_to_use": 1 << 29,
        "disk_path": str(tmp_path),
        "disk_capacity_bytes": 3 << 30,
        "eviction_policy": "arc",
        "store_threshold": 2,
        "offload_prompt_only": True,
        "lazy_offload": True,
    }
    found = resolved(tiny_llama, kv_transfer_config=transfer(name, **own))
    assert found.engine.plugins.kv_connectors == ("tiers",)
    cache = found.engine.cache
    assert (cache.host_bytes, cache.disk_path, cache.disk_bytes) == (1 << 29, str(tmp_path), 3 << 30)
    assert cache.eviction == "arc"
    kept = {"store_threshold": 2, "offload_prompt_only": True}
    assert found.engine.plugins.arguments["kv_connector.tiers"] == kept
    assert "cpu_bytes_to_use" in found.arguments["kv_offloading_size"][2], "the reason is shown"


@pytest.mark.parametrize("name", ["ExampleConnector", "SharedStorageConnector"])
def test_the_example_connector_is_a_directory(tiny_llama, tmp_path, name):
    plugins = resolved(tiny_llama, kv_transfer_config=transfer(name, shared_storage_path=str(tmp_path))).engine.plugins
    assert plugins.kv_connectors == ("file",)
    assert plugins.arguments["kv_connector.file"] == {"directory": str(tmp_path)}


def test_several_connectors_are_a_list(tiny_llama, tmp_path):
    parts = [
        transfer("OffloadingConnector", cpu_bytes_to_use=1 << 29),
        transfer("ExampleConnector", shared_storage_path=str(tmp_path / "near")),
        transfer("file", directory=str(tmp_path / "far"), size=2),
    ]
    expected = {
        "kv_connector.file": {"directory": str(tmp_path / "near")},
        "kv_connector.file#2": {"directory": str(tmp_path / "far"), "size": 2},
    }
    for given in (
        {"kv_transfer_config": transfer("MultiConnector", connectors=parts)},
        {"kv_connectors": ["multi"], "kv_connectors_config": {"multi": {"connectors": parts}}},
    ):
        engine = resolved(tiny_llama, **given).engine
        assert engine.plugins.kv_connectors == ("tiers", "file", "file#2")
        assert {name: own for name, own in engine.plugins.arguments.items() if "kv_con" in name} == expected
        assert engine.cache.host_bytes == 1 << 29
        assert sum(row.kind == "kv_connector" for row in engine.plugins.table) == 2, "one row a plugin"


@pytest.mark.parametrize(
    ("name", "own", "plugin", "arguments"),
    [
        ("LMCacheConnectorV1", {"lmcache.remote_url": "lm://h:1"}, "lmcache", {"url": "lm://h:1"}),
        ("LMCacheMPConnector", {}, "lmcache", {"url": "tcp://localhost:5555"}),
        ("LMCacheMPConnector", {"lmcache.mp.host": "127.0.0.1"}, "lmcache", {"url": "tcp://127.0.0.1:5555"}),
        ("LMCacheMPConnector", {"lmcache.mp.port": 6}, "lmcache", {"url": "tcp://localhost:6"}),
        ("MooncakeStoreConnector", {"master_server_address": "h:1"}, "mooncake_store", {"master": "h:1"}),
        ("DecodeBenchConnector", {"seed": 7}, "bench", {"seed": 7}),
    ],
)
def test_vllms_names_for_stores_and_made_up_blocks(tiny_llama, name, own, plugin, arguments):
    plugins = resolved(tiny_llama, kv_transfer_config=transfer(name, **own)).engine.plugins
    assert plugins.kv_connectors == (plugin,)
    assert plugins.arguments[f"kv_connector.{plugin}"] == arguments


def test_made_up_blocks_go_nowhere_else(tiny_llama, tmp_path):
    made_up = {"kv_connectors_config": {"bench": {"seed": 1}, "file": {"directory": str(tmp_path)}}}
    with pytest.raises(ConfigError, match=r"--kv-connectors bench: .*made up.*leave out --kv-connectors file"):
        resolved(tiny_llama, kv_connectors=["bench", "file"], **made_up)
    with pytest.raises(ConfigError, match="leave out --kv-offloading-size"):
        resolved(tiny_llama, kv_transfer_config=transfer("DecodeBenchConnector", seed=1), kv_offloading_size=1)


TRANSFER = "--kv-transfer-config.kv_connector"


@pytest.mark.parametrize(
    ("name", "own", "sentence"),
    [
        ("OffloadingConnector", {}, "needs .*cpu_bytes_to_use BYTES or .*disk_path DIRECTORY"),
        ("OffloadingConnector", {"cpu_bytes_to_use": "much"}, "cpu_bytes_to_use much: expected a number of bytes"),
        ("OffloadingConnector", {"cpu_bytes_to_use": 5e9, "disk_capacity_bytes": 5}, "disk_capacity_bytes: needs"),
        ("OffloadingConnector", {"cpu_bytes_to_use": 5e9, "store_threshold": -1}, "store_threshold.*-1"),
        ("OffloadingConnector", {"cpu_bytes_to_use": 5e9, "offload_prompt_only": "some"}, "offload_prompt_only.*some"),
        (
            "OffloadingConnector",
            {"cpu_bytes_to_use": 5e9, "eviction_policy": "fifo"},
            "eviction_policy fifo: expected one of",
        ),
        (
            "OffloadingConnector",
            {"cpu_bytes_to_use": 5e9, "cpu_size": 3},
            "cpu_size 3: no key of this connector; known",
        ),
        ("ExampleConnector", {}, r"^[^\n]*needs [^\n]*shared_storage_path DIRECTORY\.$"),
        ("ExampleConnector", {"shared_storage_path": "d", "compress": 1}, "extra_config.compress"),
        ("MooncakeStoreConnector", {}, "kv_connector_extra_config.master: required"),
        ("LMCacheConnectorV1", {}, "kv_connector_extra_config.url: required"),
        ("LMCacheConnectorV1", {"lmcache.chunk_size": 16}, r"kv_connector_extra_config.lmcache.chunk_size"),
        ("LMCacheMPConnector", {"lmcache.mp.mq_timeout": 3}, r"kv_connector_extra_config.lmcache.mp.mq_timeout"),
        ("DecodeBenchConnector", {}, "kv_connector_extra_config.seed: required"),
        ("DecodeBenchConnector", {"seed": 1, "fill_mean": 0.1}, "kv_connector_extra_config.fill_mean"),
        ("MultiConnector", {}, "expected the key connectors alone"),
        ("MultiConnector", {"connectors": [{"kv_role": "kv_both"}]}, r"connectors\[0\]: names no connector"),
        (
            "MultiConnector",
            {"connectors": [{"kv_connector": "unknown"}]},
            r"connectors\[0\].kv_connector unknown: .*known: ",
        ),
        (
            "MultiConnector",
            {"connectors": [transfer("file") | {"kv_role": "kv_consumer"}]},
            r"\[0\].kv_role kv_consumer: only",
        ),
        ("MultiConnector", {"connectors": [transfer("file")]}, r"\[0\].kv_connector_extra_config.directory: required"),
    ],
)
def test_mistakes_in_vllms_form_are_named(tiny_llama, name, own, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolved(tiny_llama, kv_transfer_config=transfer(name, **own))


def test_what_two_arguments_say_must_agree(tiny_llama):
    given = {"kv_transfer_config": transfer("OffloadingConnector", cpu_bytes_to_use=1 << 30)}
    assert resolved(tiny_llama, kv_offloading_size=1, **given).engine.cache.host_bytes == 1 << 30
    with pytest.raises(ConfigError, match=r"cpu_bytes_to_use 1073741824: --kv-offloading-size 2.0 says otherwise"):
        resolved(tiny_llama, kv_offloading_size=2, **given)


def test_arguments_of_a_part_are_not_taken_from_elsewhere(tiny_llama, tmp_path):
    parts = {"connectors": [transfer("file", directory=str(tmp_path))]}
    given = {"kv_connectors": ["multi"], "kv_connectors_config": {"multi": parts, "file": {"size": 2}}}
    with pytest.raises(ConfigError, match=r"--kv-connectors-config.file: this KV connector is not used"):
        resolved(tiny_llama, **given)


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ({}, 0),
        ({"prefix_cache_retention_interval": 64}, 64),
        ({"prefix_cache_retention_interval": "none"}, 16),
        ({"mamba_cache_mode": "align"}, 0),
        ({"mamba_cache_mode": "all"}, 16),
    ],
)
def test_arguments_say_how_often_a_state_is_kept(tiny_lfm2, given, every):
    assert resolved(tiny_lfm2, block_size=16, prefix_match_unit=16, **given).engine.cache.snapshot_every == every


def test_names_that_mean_what_is_so_are_accepted(tiny_lfm2):
    given = {
        "kv_offloading_backend": "native",
        "enable_mamba_shared_prefix_checkpoint": True,
        "kv_offloading_size": 0.1,
        "mamba_config": MambaConfig(backend="triton", ssu_algorithm=None, enable_stochastic_rounding=False),
    }
    assert resolved(tiny_lfm2, **given).engine.cache.host_bytes
    for wrong, why in (
        ({"kv_offloading_backend": "lmcache"}, "MP server is a connector.* --kv-connectors lmcache"),
        ({"use_replayssm": True}, "a state is the same however it was computed"),
        ({"mamba_backend": "flashinfer"}, "use --kernels"),
        ({"mamba_config": {"backend": "flashinfer"}}, r"mamba_config.backend|--mamba-config.backend.*use --kernels"),
        ({"mamba_config": {"enable_stochastic_rounding": True}}, "use --enable-mamba-cache-stochastic-rounding"),
        ({"mamba_config": {"stochastic_rounding_philox_rounds": 7}}, "is Philox with ten rounds"),
        ({"mamba_config": {"backends": "triton"}}, "backend"),
        ({"prefix_match_unit": 7}, "set --block-size 7"),
        ({"swa_bounded_replay": False}, "leave it out|use true"),
    ):
        with pytest.raises(ConfigError, match=why):
            resolved(tiny_lfm2, **wrong)


def role_of(model, **given):
    """Own arguments of the connector `tcp`."""
    return resolved(model, **given).engine.plugins.arguments.get("kv_connector.tcp", {})


def test_roles_are_arguments_of_the_connector_tcp(tiny_llama):
    tcp = {"kv_connector": "tcp"}
    produces = role_of(tiny_llama, kv_transfer_config=tcp | {"kv_role": "kv_producer", "engine_id": "p"}, kv_lease=5)
    assert produces == {"role": "kv_producer", "engine_id": "p", "lease": 5.0, "listen": "127.0.0.1:14579"}
    consumes = role_of(tiny_llama, kv_transfer_config=tcp | {"kv_role": "kv_consumer"}, kv_peers=["a:1", "b:2"])
    assert consumes == {"role": "kv_consumer", "peers": ["a:1", "b:2"]}
    both = role_of(tiny_llama, kv_transfer_config=tcp | {"kv_ip": "::1", "kv_port": 7}, kv_peers=["127.0.0.1:1"])
    assert both == {"role": "kv_both", "peers": ["127.0.0.1:1"], "listen": "[::1]:7"}
    fails = tcp | {"kv_role": "kv_consumer", "kv_load_failure_policy": "fail"}
    assert role_of(tiny_llama, kv_transfer_config=fails, kv_peers=["a:1"])["load_failure"] == "fail"
    own = {"listen": "127.0.0.1:9"}
    moved = resolved(tiny_llama, kv_transfer_config={"kv_connector": "NixlConnector"}, kv_peers=["127.0.0.1:1"])
    found = moved.engine.plugins.arguments["kv_connector.nixl"]
    assert found == {"role": "kv_both", "peers": ["127.0.0.1:1"], "listen": "127.0.0.1:14579"}
    limited = role_of(tiny_llama, kv_transfer_config=tcp | {"kv_role": "kv_producer"}, kv_rate_limit=20_000_000)
    assert limited["rate_limit"] == 20_000_000
    recomputes = tcp | {"kv_load_failure_policy": "recompute", "kv_connector_extra_config": own}
    assert role_of(tiny_llama, kv_transfer_config=recomputes) == own, "it asks for no role"
    shares = role_of(tiny_llama, kv_transfer_config=tcp | {"kv_connector_extra_config": own})
    assert shares == own, "without a role blocks are shared by name"


def test_requests_may_fail_for_want_of_pages_of_every_slow_place(tiny_llama, tmp_path):
    fails = {"kv_load_failure_policy": "fail"}

    def own(name, connector, **extra):
        given = {"kv_connector": connector, "kv_connector_extra_config": extra, **fails}
        return resolved(tiny_llama, kv_transfer_config=given).engine.plugins.arguments[f"kv_connector.{name}"]

    assert own("file", "file", directory=str(tmp_path))["load_failure"] == "fail"
    assert own("file", "ExampleConnector", shared_storage_path=str(tmp_path))["load_failure"] == "fail"
    assert own("shm", "shm")["load_failure"] == "fail"
    assert own("tiers", "OffloadingConnector", disk_path=str(tmp_path)) == {"load_failure": "fail"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {
                "kv_transfer_config": {
                    "kv_connector": "OffloadingConnector",
                    "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 20},
                    "kv_load_failure_policy": "fail",
                }
            },
            "kv_load_failure_policy fail: needs .*disk_path DIRECTORY, since host memory is never waited for",
        ),
        (
            {
                "kv_transfer_config": {
                    "kv_connector": "OffloadingConnector",
                    "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 20},
                    "kv_port": 5,
                }
            },
            "kv_port 5: only the connectors tcp",
        ),
        ({"kv_peers": ["a:1"]}, "--kv-peers: needs --kv-transfer-config.kv_connector tcp"),
        ({"kv_rate_limit": 5, "kv_transfer_config": {"kv_connector": "tcp"}}, "kv_rate_limit 5: .* from 10000000"),
        ({"kv_rate_limit": 1 << 30}, "--kv-rate-limit: needs --kv-transfer-config.kv_connector tcp"),
        ({"kv_lease": 3, "kv_connectors": ["tcp"]}, "--kv-lease: needs --kv-transfer-config.kv_connector tcp"),
        (
            {
                "kv_peers": ["a:1"],
                "kv_transfer_config": {"kv_connector": "tcp", "kv_connector_extra_config": {"peers": ["b:1"]}},
            },
            "--kv-peers .*: the connector's own peers .* says otherwise",
        ),
        (
            {"kv_transfer_config": {"kv_connector": "events", "kv_load_failure_policy": "fail"}},
            "kv_load_failure_policy fail: only the connectors tcp, nixl",
        ),
        (
            {"data_parallel_size": 2, "kv_transfer_config": {"kv_connector": "tcp", "kv_role": "kv_producer"}},
            "kv_role kv_producer: the engines of --data-parallel-size 2 hand requests to one another",
        ),
    ],
)
def test_roles_that_cannot_be_are_refused(tiny_llama, given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolved(tiny_llama, **given)
