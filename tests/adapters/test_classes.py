"""An adapter's own head for classes, which peft saves with it, replaces the model's for its requests."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from core_frontend.library.lora_request import LoRARequest
from tests.adapters.engines import engine
from tests.families.oracle import tiny_config
from tests.tiny_models import save_checkpoint

IDS = [1, 40, 77, 90, 12]
QUICK = ("llama", "roberta", "modernbert")
"""One layer; two layers in one module; a norm in the head."""

SEQUENCES: dict[str, dict[str, Any]] = {
    "llama": {"target_modules": ["q_proj", "score"], "use_dora": True},
    "qwen3": {"target_modules": ["q_proj"]},
    "bert": {"target_modules": ["query", "pooler.dense"]},
    "roberta": {"target_modules": ["query"]},
    "distilbert": {"target_modules": ["q_lin"], "modules_to_save": ["pre_classifier"]},
    "modernbert": {"target_modules": ["Wqkv"], "modules_to_save": ["head"]},
}
"""Options of `LoraConfig` for each row of heads. With the task type, peft also saves what is called `score` or `classifier`."""


def _random(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    return model


def _adapted(base: Path, target: Path, kind: Any, task: str, model_type: str, options: dict[str, Any]) -> Any:
    """Save a model with a head, and an adapter of it; returns what peft computes with."""
    torch.manual_seed(3)
    if model_type == "llama":
        model = kind.from_pretrained(save_checkpoint(base), num_labels=3, dtype=torch.float32)
    else:
        config = tiny_config(model_type)
        config.num_labels = 3
        config.pad_token_id = 0
        model = kind.from_config(config, dtype=torch.float32)
    model.eval().save_pretrained(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, LoraConfig(r=4, task_type=task, **options)).eval()
    _random(adapted).save_pretrained(target)
    return adapted


def _marked(names: Any) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.models) for name in names]


@pytest.mark.parametrize("model_type", _marked(SEQUENCES))
def test_scores_are_those_of_peft(model_type: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    adapted = _adapted(
        base, tmp_path / "adapter", AutoModelForSequenceClassification, "SEQ_CLS", model_type, SEQUENCES[model_type]
    )
    with torch.inference_mode():
        wanted = adapted(input_ids=torch.tensor([IDS])).logits[0].softmax(-1).numpy()
    with engine(base, {}, skip_tokenizer_init=model_type != "llama") as made:
        adapter = LoRARequest("a", lora_path=str(tmp_path / "adapter"))
        plain, found = (
            made.llm.classify([{"prompt_token_ids": IDS}], lora_request=one, use_tqdm=False)[0]
            for one in (None, adapter)
        )
    assert np.abs(np.array(found.outputs.probs) - wanted).max() <= 1e-4
    assert np.abs(np.array(plain.outputs.probs) - wanted).max() > 1e-3


@pytest.mark.parametrize("model_type", _marked(["qwen3", "bert"]))
def test_classes_of_tokens_are_those_of_peft(model_type: str, tmp_path: Path) -> None:
    base, options = tmp_path / "base", SEQUENCES[model_type]
    if model_type == "bert":
        options = {"target_modules": ["query"]}
    adapted = _adapted(base, tmp_path / "adapter", AutoModelForTokenClassification, "TOKEN_CLS", model_type, options)
    with torch.inference_mode():
        wanted = adapted(input_ids=torch.tensor([IDS])).logits[0].softmax(-1).numpy()
    with engine(base, {}, skip_tokenizer_init=True) as made:
        adapter = LoRARequest("a", lora_path=str(tmp_path / "adapter"))
        [found] = made.llm.encode(
            [{"prompt_token_ids": IDS}], pooling_task="token_classify", lora_request=adapter, use_tqdm=False
        )
    assert np.abs(np.array(found.outputs.data) - wanted).max() <= 1e-4
