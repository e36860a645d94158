"""Both real models against transformers on the same weights, dequantized, in float32."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import AutoModelForCausalLM, GgufConfig

from core import LLM, SamplingParams
from tests.real_models import gemma3_path, smollm2_path

PROMPTS = ["The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n    "]
LOGPROB_TOLERANCE = 2e-3
PATHS = {"smollm2": smollm2_path, "gemma3": gemma3_path}
LONGER = pytest.param("gemma3", marks=pytest.mark.models)

LONG_TEXT = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")[:4200]


@cache
def reference_model(path: Path) -> torch.nn.Module:
    """transformers' own reading of the file, dequantized to float32."""
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    ).eval()


@pytest.mark.parametrize("name", ["smollm2", LONGER])
def test_greedy_tokens_and_logprobs_equal_transformers(name: str) -> None:
    path = PATHS[name]()
    llm = LLM(model=str(path), dtype="float32", max_model_len=256, kv_cache_dtype="auto")
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, logprobs=0)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    llm.close()
    reference = reference_model(path)
    for output in outputs:
        prompt, tokens = output.prompt_token_ids, output.outputs[0].token_ids
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
        assert tokens == logits.argmax(-1).tolist()
        expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        entries = zip(output.outputs[0].logprobs, tokens, strict=True)
        got = torch.tensor([position[token].logprob for position, token in entries])
        torch.testing.assert_close(got, expected, atol=LOGPROB_TOLERANCE, rtol=0)


@pytest.mark.models
def test_prompts_beyond_the_window_score_as_in_transformers() -> None:
    """Gemma's sliding layers see 512 tokens; the prompt is longer and computed in chunks."""
    path = gemma3_path()
    llm = LLM(model=str(path), max_model_len=1400, dtype="float32", max_num_batched_tokens=300)
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    output = llm.generate(LONG_TEXT, asked, use_tqdm=False)[0]
    llm.close()
    ids = output.prompt_token_ids
    assert len(ids) > 900
    with torch.inference_mode():
        logprobs = reference_model(path)(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = logprobs[:-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    got = torch.tensor([entry[token].logprob for entry, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)])
    torch.testing.assert_close(got, expected, atol=LOGPROB_TOLERANCE, rtol=0)


def test_the_embedded_model_answers_sensibly() -> None:
    llm = LLM(max_model_len=512)
    answers = llm.chat(
        [
            [{"role": "user", "content": "What is the capital city of Japan?"}],
            [{"role": "user", "content": "What is 2 + 2?"}],
        ],
        SamplingParams(temperature=0, max_tokens=32),
        use_tqdm=False,
    )
    llm.close()
    assert "Tokyo" in answers[0].outputs[0].text
    assert "4" in answers[1].outputs[0].text


def test_gemma_continues_sensibly() -> None:
    llm = LLM(model=str(gemma3_path()), max_model_len=256)
    prompt = "The capital of Italy is the city of"
    output = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    llm.close()
    assert "Rome" in output[0].outputs[0].text


@pytest.mark.parametrize("find", [smollm2_path, pytest.param(gemma3_path, marks=pytest.mark.models)])
def test_the_reader_of_the_file_agrees_with_the_formats_own_tool(find: Callable[[], Path]) -> None:
    """A few tensors of each type, packed by us and dequantized, equal the `gguf` package's values."""
    from core.api.specs import LayerSpec, PartPlan
    from core.plugin.hookspecs import LoadContext
    from core_loaders.gguf import manifest as loader_manifest
    from core_quantization.gguf import manifest as method_manifest

    for path in [find()]:
        loader = loader_manifest.core_load(LoadContext())
        manifest = loader.resolve(str(path))
        method = method_manifest.core_load(LoadContext(manifest=manifest, dtype="float32"))
        theirs = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
        seen: set[str] = set()
        for name, info in manifest.tensors.items():
            if info.dtype in seen or len(info.shape) != 2 or name.endswith(("q_proj.weight", "k_proj.weight")):
                continue
            spec = LayerSpec(name.removesuffix(".weight"), "linear", tuple(info.shape))
            if not isinstance(method.plan(spec), PartPlan):
                continue
            seen.add(info.dtype)
            weight = method.pack(spec, dict(loader.iter(manifest, [name])))
            other = theirs[info.source]
            expected = torch.from_numpy(dequantize(other.data, other.tensor_type).copy()).view(info.shape)
            torch.testing.assert_close(weight.dequantize(), expected, atol=1e-7, rtol=1e-6)
        assert seen
