"""An adapter's own head for classes, which peft saves with it, replaces the model's for its requests."""

import warnings
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification

from core_frontend.library.lora_request import LoRARequest
from tests.adapters.engines import engine
from tests.tiny_models import save_checkpoint


def test_scores_are_those_of_peft(tmp_path: Path) -> None:
    base = save_checkpoint(tmp_path / "base")
    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3, dtype=torch.float32)
    model.save_pretrained(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, LoraConfig(r=4, task_type="SEQ_CLS", target_modules=["q_proj"])).eval()
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    ids = [1, 40, 77, 90, 12]
    with torch.inference_mode():
        wanted = adapted(input_ids=torch.tensor([ids])).logits[0].softmax(-1).numpy()
    with engine(base, {}) as made:
        adapter = LoRARequest("a", lora_path=str(tmp_path / "adapter"))
        plain, found = (
            made.llm.classify([{"prompt_token_ids": ids}], lora_request=one, use_tqdm=False)[0]
            for one in (None, adapter)
        )
    assert np.abs(np.array(found.outputs.probs) - wanted).max() <= 1e-4
    assert np.abs(np.array(plain.outputs.probs) - wanted).max() > 1e-3
