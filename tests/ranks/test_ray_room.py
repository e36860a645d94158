"""What the executor of Ray does before it needs a cluster: messages, and the share of a machine that each bundle gets."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.api.errors import ConfigError, UserError
from core_config.resolve import resolve
from core_distributed.arguments import RayArguments
from core_distributed.on_ray.cluster import Cluster
from core_distributed.on_ray.hosts import _config_of
from core_distributed.on_ray.maker import RayMaker
from tests.tiny_models import save_checkpoint

FEW = {"max_model_len": 256, "kv_cache_memory_bytes": "8M"}
ON_RAY = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("room") / "llama")


def resolved(path: Path, **settings: Any) -> Any:
    return resolve({"model": str(path), **FEW, **ON_RAY, **settings}, context="llm", environ={})


def test_without_ray_it_says_what_to_install(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r'pip install "core-engine-distributed\[ray\]"'):
        RayMaker(RayArguments(ranks=2, nodes=2)).build(resolved(llama).engine)


def test_each_rank_is_a_bundle_and_with_nnodes_each_host(llama: Path) -> None:
    engine = resolved(llama).engine
    assert engine.plugins.executor == "ray"
    own = engine.plugins.arguments["executor.ray"]
    assert (own["nodes"], own["spread"], own["nsight"]) == (2, False, False)
    assert "address" not in own and "port" not in own and "key_file" not in own
    settings = {"tensor_parallel_size": 4, "nnodes": 2, "master_port": 7000, "ray_workers_use_nsight": True}
    own = resolved(llama, **settings).engine.plugins.arguments["executor.ray"]
    assert (own["ranks"], own["nodes"], own["spread"], own["nsight"], own["port"]) == (4, 2, True, True, 7000)


@pytest.mark.parametrize(
    ("processors", "bundles", "share"),
    [([8], 2, 4), ([8, 8], 2, 8), ([8, 2], 2, 2), ([2], 4, 1), ([8, 0], 2, 4), ([0], 2, 1), ([9, 9], 4, 4)],
)
def test_bundles_share_the_processors_of_the_smallest_node(processors: list[int], bundles: int, share: int) -> None:
    cluster = object.__new__(Cluster)
    cluster._nodes = [{"NodeManagerAddress": "a", "Resources": {"CPU": float(count)}} for count in processors]
    assert cluster.share(bundles) == share
    cluster.ray = SimpleNamespace(available_resources=dict)
    assert cluster.room() == f"processors of the nodes: {', '.join(f'a: {count}' for count in processors)}; free now: 0"


def test_bundles_of_a_machine_share_its_memory(llama: Path) -> None:
    whole = resolved(llama).engine
    config = _config_of(whole, 3, 2)
    assert config.plugins.arguments["platform.cpu"]["threads"] == 3
    assert config.cache.memory_bytes == whole.cache.memory_bytes // 2
    bound = resolved(llama, platform_config={"thread_binding": "auto"}).engine
    assert _config_of(bound, 3, 1).plugins.arguments["platform.cpu"]["thread_binding"] == "auto"
    with pytest.raises(UserError, match="thread_binding auto: Ray has placed 2 bundles of this engine on one node"):
        _config_of(bound, 3, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node_rank": 1, "nnodes": 2}, "--node-rank 1: Ray starts all nodes"),
        ({"kv_offloading_size": 1.0}, "--kv-offloading-size: not with --distributed-executor-backend ray"),
        ({"data_parallel_size": 2}, "--distributed-executor-backend ray: not with several engines"),
        ({"enable_lora": True}, "--enable-lora: not with"),
    ],
)
def test_what_does_not_fit_is_named(llama: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolved(llama, **changes)


def test_what_has_no_effect_is_said(llama: Path) -> None:
    (warning,) = [each for each in resolved(llama, tensor_parallel_size=1).warnings if "backend ray" in each]
    assert "no effect with one rank" in warning
    other = resolved(llama, distributed_executor_backend="mp", ray_workers_use_nsight=True)
    assert any("--ray-workers-use-nsight: no effect without" in each for each in other.warnings)
