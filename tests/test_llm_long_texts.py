"""Vectors of texts beyond the context, and of texts with an instruction, held against transformers' hidden states."""

import shutil

import numpy as np
import pytest
import torch

from core import LLM, PoolingParams
from core.api.errors import ConfigError, RequestError
from tests.families.oracle import load, reference

NO_BAR = {"use_tqdm": False}


def _llm(path, **settings):
    return LLM(str(path), dtype="float32", block_size=4, use_tqdm_on_load=False, **settings)


def _unit(vector):
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("kind", ["MEAN", "LAST"])
def test_a_text_beyond_the_context_is_pooled_in_pieces(kind):
    known = reference("llama")
    ids = known.prompts[0]
    keys = {"pooling_type": kind, "enable_chunked_processing": True, "max_embed_len": len(ids)}
    body = load(known.path, "llama").model
    parts = [ids[start : start + 16] for start in range(0, len(ids), 16)]
    with torch.inference_mode():
        states = [body(input_ids=torch.tensor([part])).last_hidden_state[0].numpy() for part in parts]
    vectors = [one.mean(0) if kind == "MEAN" else one[-1] for one in states]
    expected = np.average(vectors, axis=0, weights=[len(part) for part in parts])
    with _llm(known.path, runner="pooling", max_model_len=16, pooler_config=keys) as llm:
        output = llm.encode({"prompt_token_ids": ids}, PoolingParams(use_activation=False), **NO_BAR)[0]
        unit = llm.embed({"prompt_token_ids": ids}, **NO_BAR)[0].outputs.embedding
        for params in (PoolingParams(task="token_embed"), None):
            longer = ids if params else [*ids, 5]
            with pytest.raises(RequestError, match="the model takes at most"):
                llm.encode({"prompt_token_ids": longer}, params, **NO_BAR)
    assert output.prompt_token_ids == ids
    assert np.allclose(output.outputs.data, expected, atol=2e-3) and np.allclose(unit, _unit(expected), atol=1e-3)
    with pytest.raises(ConfigError, match="go together; give both or none"):
        _llm(known.path, runner="pooling", pooler_config={"max_embed_len": 64})


def test_gritlm_sees_both_sides_and_leaves_its_instruction_out(tmp_path):
    """Its model is a Mistral of transformers, whose tokens see all others of their text here."""
    known = reference("mistral", "no window")
    shutil.copytree(known.path, tmp_path / "grit")
    overrides = {"architectures": ["GritLM"], "is_causal": False}
    texts = ["<|user|>\nfind\n<|embed|>\nthe text", "<|embed|>\nanother one", "plain"]
    with _llm(tmp_path / "grit", hf_overrides=overrides, runner="pooling") as llm:
        found = llm.embed(texts, **NO_BAR)
        with pytest.raises(RequestError, match="There is no text behind"):
            llm.embed("<|embed|>\n", **NO_BAR)
    model = load(known.path, "mistral")
    for text, output in zip(texts, found, strict=True):
        ids = output.prompt_token_ids
        both = torch.zeros(1, 1, len(ids), len(ids))
        with torch.inference_mode():
            states = model.model(input_ids=torch.tensor([ids]), attention_mask=both, use_cache=False).last_hidden_state[
                0
            ]
        behind = text.rpartition("<|embed|>\n")[2]
        mean = states[len(ids) - len(behind) :] if behind != text else states  # a token for each character
        assert np.allclose(output.outputs.embedding, _unit(mean.mean(0).numpy()), atol=1e-4)
    with pytest.raises(ConfigError, match="which generates no text"):
        _llm(tmp_path / "grit", hf_overrides=overrides, runner="generate")
