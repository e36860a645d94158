"""The contract of the prefix cache on models of every kind of layer: the next turn computes its new tokens and one block.

Conversations with drafts, chunks and stop strings lose their memory in every way, and answer like an engine without a cache.
"""

from pathlib import Path

import pytest

from core import LLM
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.drawn import shapes_of, write_adapter
from tests.kv.conversations import FAMILIES, NUM_TURNS, WAYS, WITHIN_ENGINES, Case, checkpoint


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A checkpoint, and an engine of it without a cache."""
    path = checkpoint(request.param, tmp_path_factory.mktemp(request.param) / "model")
    with LLM(str(path), max_model_len=512, enable_prefix_caching=False, use_tqdm_on_load=False) as plain:
        yield path, plain


def _by_family(way: str, families: tuple[str, ...]) -> list[object]:
    """A way to lose memory with each family; those that `make test` leaves out are marked."""
    return [pytest.param(family, way, marks=[pytest.mark.slow] * (family not in families)) for family in FAMILIES]


CASES = [
    *_by_family("kept", ("deepseek_v3", "mamba2", "mamba", "nemotron_h", "plamo3")),
    *_by_family("host", ("llama", "qwen3_next", "lfm2", "qwen3_5_text", "gemma3n_text")),
    *_by_family("disk", ("gemma3", "mamba2", "jamba")),
    *_by_family("restart", ("llama", "qwen3_next", "solar")),
    *_by_family("crowded", ("gemma3", "lfm2", "granitemoehybrid")),
    *_by_family("preempted", ("qwen3_next", "gemma3", "zamba2")),
    *_by_family("slept", ("mamba2",)),
    *_by_family("swapped", ("lfm2", "step3_text")),
    *_by_family("shm", ("qwen3_next",)),
    *_by_family("file", ()),
    *_by_family("multi", ("lfm2",)),
]


@pytest.mark.parametrize(("model", "way"), CASES, indirect=["model"])
def test_the_next_turn_computes_its_new_tokens_and_one_block(model: tuple[Path, LLM], way: str, tmp_path: Path) -> None:
    path, plain = model
    assert Case(path, way, 0, plain, tmp_path / "pages").run() >= NUM_TURNS


NARROW = [
    ("qwen3_next", "host", {"mamba_cache_dtype": "bfloat16"}),
    ("mamba2", "disk", {"mamba_ssm_cache_dtype": "float16"}),
    pytest.param("lfm2", "restart", {"mamba_cache_dtype": "float16"}, marks=pytest.mark.slow),
    pytest.param("jamba", "host", {"mamba_cache_dtype": "bfloat16"}, marks=pytest.mark.slow),
    pytest.param("falcon_h1", "kept", {"mamba_ssm_cache_dtype": "bfloat16"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("family", "way", "options"), NARROW)
def test_so_it_is_with_states_of_16_bits(family: str, way: str, options: dict[str, str], tmp_path: Path) -> None:
    """Chunks, drafts and snapshots change no bit, although every stored number is rounded."""
    path = checkpoint(family, tmp_path / "model")
    with LLM(str(path), max_model_len=512, enable_prefix_caching=False, use_tqdm_on_load=False, **options) as plain:
        assert Case(path, way, 3, plain, tmp_path / "pages", **options).run() >= NUM_TURNS


ADAPTED = [
    ("lfm2", "disk"),
    *(
        pytest.param(*row, marks=pytest.mark.slow)
        for row in (("llama", "restart"), ("gemma3", "disk"), ("lfm2", "slept"))
    ),
]


@pytest.mark.parametrize(("family", "way"), ADAPTED)
def test_so_it_is_with_adapters(family: str, way: str, tmp_path: Path) -> None:
    """Conversations with the model, and with two adapters of it, side by side."""
    path = checkpoint(family, tmp_path / "model")
    names, shapes = ("first", "second"), shapes_of(str(path))
    files = [write_adapter(tmp_path / name, shapes, 8, seed, 0.2) for seed, name in enumerate(names)]
    adapters = [LoRARequest(name, number + 1, str(files[number])) for number, name in enumerate(names)]
    options = {"enable_lora": True, "max_loras": 2}
    with LLM(str(path), max_model_len=512, enable_prefix_caching=False, use_tqdm_on_load=False, **options) as plain:
        assert Case(path, way, 1, plain, tmp_path / "pages", (None, *adapters), **options).run() >= NUM_TURNS


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "lfm2"], indirect=True)
def test_so_it_is_with_two_engines_and_a_place_that_they_share(model: tuple[Path, LLM], tmp_path: Path) -> None:
    path, plain = model
    assert Case(path, "file", 2, plain, tmp_path / "pages", data_parallel_size=2).run() >= NUM_TURNS


SEEDS = [(way, seed) for way in WAYS for seed in range(1, 11 if way in WITHIN_ENGINES else 4)]


@pytest.mark.slow
@pytest.mark.parametrize("model", FAMILIES, indirect=True)
@pytest.mark.parametrize(("way", "seed"), SEEDS)
def test_so_it_is_with_other_seeds(model: tuple[Path, LLM], way: str, seed: int, tmp_path: Path) -> None:
    path, plain = model
    assert Case(path, way, seed, plain, tmp_path / "pages").run() >= NUM_TURNS
