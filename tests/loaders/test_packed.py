"""`core convert`, and models that start from what it writes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from core import LLM, SamplingParams
from core.api.errors import CheckpointError, CoreError
from core.commands.main import main
from core.plugin.table import PluginTable
from core_config.resolve import resolve
from core_loaders.packed import manifest as packed_manifest
from core_loaders.packed.loader import PackedLoader
from core_runtime.executor.plugin_loading import open_runtime
from core_runtime.executor.reloading.checkpoint import open_checkpoint
from core_runtime.models.tensors.prepared import DATA, INDEX
from core_runtime.specs.checkpoint import FileFacts
from tests.loaders.gguf_files import write_gguf
from tests.tiny_models import save_checkpoint
from tests.torch_free import run_torch_free


def answers(model: Path, **arguments: Any) -> list[Any]:
    """Tokens and log-probabilities, to the bit."""
    llm = LLM(model=str(model), device="cpu", max_model_len=128, **arguments)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=2)
    outputs = llm.generate([{"prompt_token_ids": list(range(4, 40))}, {"prompt_token_ids": [7]}], params)
    found: list[Any] = []
    for output in outputs:
        first = output.outputs[0]
        told = [sorted((token, entry.logprob) for token, entry in step.items()) for step in first.logprobs]
        found.append((first.token_ids, told))
    return found


def converted(source: Path, out: Path, *words: str) -> Path:
    assert main(["convert", str(source), str(out), "--device", "cpu", "--no-use-tqdm-on-load", *words]) == 0
    return out


@pytest.fixture(scope="module")
def packed(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(tiny_llama, tmp_path_factory.mktemp("packed") / "llama.core")


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    shutil.copytree(packed, tmp_path / "copy")
    return tmp_path / "copy"


def test_answers_are_the_same_to_the_bit(tiny_llama: Path, packed: Path) -> None:
    expected = answers(tiny_llama)
    assert answers(packed) == expected
    for choice in (True, False):
        assert answers(packed, model_loader_extra_config={"map": choice}) == expected


@pytest.mark.parametrize(("family", "quantization"), [("deepseek_v2", None), ("mixtral", "nvfp4")])
def test_latents_experts_and_tables_of_formats(family: str, quantization: str | None, tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", family=family)
    words = [] if quantization is None else ["--quantization", quantization]
    out = converted(source, tmp_path / "out", *words)
    assert answers(out, quantization=quantization) == answers(source, quantization=quantization)


@pytest.mark.parametrize("name", ["gptq/order", "compressed-tensors/mixed", "gguf"])
def test_packed_checkpoints_with_orders_zero_points_and_planes(name: str, tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "checkpoints" / name
    if name == "gguf":
        source = write_gguf(tmp_path / "model.gguf", quant=GGMLQuantizationType.Q5_0)
    out = converted(source, tmp_path / "out", "--skip-tokenizer-init")
    assert answers(out, skip_tokenizer_init=True) == answers(source, skip_tokenizer_init=True)


def test_the_configuration_is_that_of_the_source(tiny_llama: Path, packed: Path) -> None:
    told = [
        resolve({"model": str(model), "device": "cpu"}, context="explain", environ={}) for model in (tiny_llama, packed)
    ]
    source, mine = told
    assert mine.engine.plugins.loader == "packed"
    assert mine.memory == source.memory and mine.numerics == source.numerics
    assert mine.engine.model.hf_config == source.engine.model.hf_config
    assert mine.manifest.tokenizer.directory == str(packed)
    assert (packed / "tokenizer.json").read_bytes() == (tiny_llama / "tokenizer.json").read_bytes()


def test_resolve_imports_no_torch(packed: Path) -> None:
    run_torch_free(f"from core_loaders.packed.loader import PackedLoader as Loader; Loader().resolve({str(packed)!r})")


def load(model: Path, **arguments: Any) -> None:
    """Restore all kernels. Raises CheckpointError."""
    config = resolve({"model": str(model), "device": "cpu", **arguments}, context="llm", environ={}).engine
    plugins = PluginTable(config.plugins.table)
    runtime = open_runtime(config, plugins)
    try:
        prepared = open_checkpoint(config, plugins).prepared
        assert prepared is not None
        for name in json.loads((model / INDEX).read_text())["kernels"]:
            prepared.kernels(name, runtime.kernels, lambda nbytes: runtime.allocate(nbytes, tag="weights"))
        prepared.finish()
    finally:
        runtime.close()


def kernel_of(index: dict[str, Any]) -> dict[str, Any]:
    return index["kernels"]["model.layers.1.mlp.down_proj"][0]


def put(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    """A change of one value of a kernel. path: keys with dots."""

    def change(index: dict[str, Any]) -> None:
        entry = kernel_of(index)
        *keys, last = path.split(".")
        for key in keys:
            entry = entry[key]
        entry[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda index: index.update(version=0), "is of version 0, expected 1"),
        (lambda index: index.pop("kernels"), "not understood"),
        (lambda index: index.update(data_nbytes=1), "expected 1. Is the download complete"),
        (put("layout", "cpu_native 0"), "'model.layers.1.mlp.down_proj' cannot be used here.* layout 'cpu_native 0'"),
        (put("memory.offset", 1 << 50), "'model.layers.1.mlp.down_proj' does not lie in"),
        (put("memory.offset", 8), "does not lie in"),
        (put("memory.nbytes", 4096), "into is torch.uint8 .* expected uint8"),
        (put("facts.format", 99), "describes no packed weight"),
        (put("facts.format", 3), "describes no packed weight"),
        (put("facts.shape", [1 << 30, 1 << 30]), "describes no packed weight"),
        (put("facts.shape", [1 << 20, 1 << 20]), "expected uint8"),
        (put("facts.shape", [-1, 64]), "describes no packed weight"),
        (put("facts.scale_type", 17), "describes no packed weight"),
        (put("facts.activation", "x"), "describes no packed weight"),
        (put("facts.tables", [0, 4]), "cannot be used here"),
        (put("facts.tables", [77]), "table 77 is not known"),
    ],
)
def test_an_index_that_lies_is_a_sentence(
    change: Callable[[dict[str, Any]], None], reason: str, copy: Path, packed: Path
) -> None:
    index = json.loads((packed / INDEX).read_text())
    change(index)
    (copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(CoreError, match=reason):
        load(copy)


def test_kernels_of_another_size_are_refused(copy: Path) -> None:
    index = json.loads((copy / INDEX).read_text())
    put("facts.shape", [32, 32])(index)
    (copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="have 1024 weights, expected 6144"):
        answers(copy)


def test_damaged_files_are_sentences(copy: Path) -> None:
    whole = (copy / DATA).read_bytes()
    (copy / DATA).write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=r"prepared\.weights: has .* bytes, expected"):
        PackedLoader().resolve(str(copy))
    (copy / DATA).unlink()
    with pytest.raises(CheckpointError, match=r"prepared\.weights: is missing"):
        PackedLoader().resolve(str(copy))
    (copy / INDEX).write_text("{")
    with pytest.raises(CheckpointError, match=r"prepared\.json: is not understood"):
        PackedLoader().resolve(str(copy))


def test_other_settings_than_it_was_made_for_are_refused(packed: Path) -> None:
    with pytest.raises(CheckpointError, match="made with --dtype bfloat16, here it is float32"):
        load(packed, dtype="float32")
    with pytest.raises(CheckpointError, match="made with --quantization None, here it is int8"):
        load(packed, quantization="int8")


def test_tensors_in_kernels_are_not_there_alone(packed: Path) -> None:
    loader = PackedLoader()
    manifest = loader.resolve(str(packed))
    assert [name for name, _ in loader.iter(manifest, ["model.norm.weight"])] == ["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"down_proj\.weight' is only there as a part of a prepared kernel"):
        list(loader.iter(manifest, ["model.layers.0.mlp.down_proj.weight"]))


def test_nothing_half_is_left(
    tiny_llama: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_llama, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    for source, reason in ((broken, "model.safetensors"), (packed, "is converted already")):
        assert main(["convert", str(source), str(tmp_path / "out"), "--device", "cpu"]) == 2
        assert reason in capsys.readouterr().err
    assert main(["convert", str(tiny_llama), str(broken), "--device", "cpu"]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_claims() -> None:
    def claim(*names: str) -> str | None:
        return packed_manifest.core_claim(FileFacts("m", "/m", True, names))

    assert claim("config.json", INDEX, DATA) and not claim("config.json", DATA)
