"""Two models on one device: their layers in the same KV groups and one memory, and the bits of each alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from core.api.config import CacheConfig, EngineConfig
from core.api.errors import ConfigError
from core.plugin.table import PluginTable
from core_config.resolve import resolve
from core_runtime.executor.device import Device
from core_runtime.executor.instance import ModelInstance, build, share_cache
from core_runtime.executor.plugin_loading import open_runtime
from core_runtime.executor.reloading.checkpoint import open_checkpoint
from core_runtime.specs.kv_groups import group_layers
from tests.executor.steps import view_of
from tests.tiny_models import save_checkpoint

BLOCK_SIZE = 16
BLOCKS_OF_GROUP = 5
TOKENS = [7, 100, 3, 55, 201, 9, 8, 77, 40, 41, 42, 250, 11, 12, 13, 14, 15, 99, 98, 97]
STEPS = (12, 7, 1)
"""Tokens of each step: two chunks and a decode."""


def config_of(path: Path) -> EngineConfig:
    given = {"model": str(path), "max_model_len": 64, "max_num_seqs": 2, "use_tqdm_on_load": False}
    return resolve({**given, "block_size": BLOCK_SIZE}, context="llm", environ={}).engine


@pytest.fixture(scope="module")
def paths(tiny_llama: Path, tiny_gemma3: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    smaller = tmp_path_factory.mktemp("smaller_llama")
    shape = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    twin = save_checkpoint(tmp_path_factory.mktemp("twin"), seed=1)
    return {
        "llama": tiny_llama,
        "twin": twin,
        "smaller": save_checkpoint(smaller, seed=2, **shape),
        "gemma3": tiny_gemma3,
    }


@pytest.fixture(scope="module")
def opened(paths: dict[str, Path]) -> Iterator[tuple[Device, PluginTable]]:
    config = config_of(paths["llama"])
    plugins = PluginTable(config.plugins.table)
    runtime = open_runtime(config, plugins)
    yield Device(runtime), plugins
    runtime.close()


def built(path: Path, opened: tuple[Device, PluginTable]) -> ModelInstance:
    config = config_of(path)
    device, plugins = opened
    return build(config, open_checkpoint(config, plugins), device, plugins)


def cache_of(instances: Sequence[ModelInstance]) -> CacheConfig:
    """All layers of all models, divided into groups together."""
    windows = [block.mixer.window for instance in instances for block in instance.spec.blocks]
    layer_bytes = [size for instance in instances for size in instance.layer_bytes()]
    groups = group_layers(windows, layer_bytes)
    num_blocks = 1 + BLOCKS_OF_GROUP * len(groups)
    return msgspec.structs.replace(instances[0].cache, groups=groups, num_blocks=num_blocks)


def step(instance: ModelInstance, computed: int, count: int) -> torch.Tensor:
    """All logits of the next `count` tokens."""
    metadata = []
    for mixer, group in zip(instance.model.mixers, instance.groups, strict=True):
        first = 1 + group * BLOCKS_OF_GROUP
        blocks = range(first, first + BLOCKS_OF_GROUP)
        metadata.append(mixer.build(view_of(computed, count, blocks, BLOCK_SIZE)))
    ids = torch.tensor(TOKENS[computed : computed + count])
    with torch.inference_mode():
        instance.model.forward(ids, torch.arange(computed, computed + count), metadata)
        return instance.model.logits(torch.arange(count)).clone()


def run(instances: Sequence[ModelInstance]) -> list[list[torch.Tensor]]:
    """The logits of each model's steps; the models take turns."""
    found: list[list[torch.Tensor]] = [[] for _ in instances]
    computed = 0
    for count in STEPS:
        for logits, instance in zip(found, instances, strict=True):
            logits.append(step(instance, computed, count))
        computed += count
    return found


@pytest.mark.parametrize("names", [("llama", "twin"), ("llama", "smaller"), ("gemma3", "llama")])
def test_two_models_share_groups_and_memory_and_keep_their_bits(paths, opened, names) -> None:
    device, _ = opened
    instances = [built(paths[name], opened) for name in names]
    alone = []
    for instance in instances:
        share_cache([instance], cache_of([instance]), device)
        alone += run([instance])
    cache = cache_of(instances)
    memory = share_cache(instances, cache, device)
    together = run(instances)

    num_layers = [len(instance.spec.blocks) for instance in instances]
    assert [len(instance.groups) for instance in instances] == num_layers
    assert set(instances[0].groups) & set(instances[1].groups), "layers of both lie in one group"
    assert sorted(layer for group in memory.groups for layer in group.layers) == list(range(sum(num_layers)))
    for mine, other in zip(together, alone, strict=True):
        for logits, expected in zip(mine, other, strict=True):
            assert torch.equal(logits, expected)
    assert not torch.equal(together[0][-1][:, :100], together[1][-1][:, :100])


def test_a_cache_without_room_for_a_block_of_all_models_is_a_sentence(paths, opened) -> None:
    device, _ = opened
    instances = [built(paths[name], opened) for name in ("llama", "twin")]
    room = sum(instances[0].layer_bytes()) * 3
    cache = msgspec.structs.replace(instances[0].cache, groups=(), num_blocks=None, memory_bytes=room)
    share_cache(instances[:1], cache, device)
    with pytest.raises(ConfigError, match="holds no block"):
        share_cache(instances, cache, device)
