"""An activated adapter (aLoRA) works on a document that the base has read: `python examples/activated_adapter.py [ADAPTER]`.

ADAPTER is a directory that peft has saved, trained with `LoraConfig(alora_invocation_tokens=...)` on the embedded model.
Without it, one of random numbers is written, whose words mean nothing.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from core import LLM, SamplingParams
from core_frontend.library.lora_request import LoRARequest

DOCUMENT = "The bridge was closed in March, because two of its cables had rusted. Repairs took until June. " * 8
QUESTION = "\nWhen was the bridge open again? Answer:"
INVOCATION = "\nVerdict:"
RANK, LAYERS, HIDDEN, KEYS = 16, 30, 576, 192


def random_adapter(folder: Path, invocation: list[int]) -> str:
    """Write an adapter of queries and values as peft saves it. invocation: tokens that activate it."""
    tensors = {}
    for layer in range(LAYERS):
        for module, outputs in (("q_proj", HIDDEN), ("v_proj", KEYS)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN) * 0.05
            tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, RANK) * 0.05
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK}
    config |= {"target_modules": ["q_proj", "v_proj"], "alora_invocation_tokens": invocation}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


torch.manual_seed(0)
params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
with tempfile.TemporaryDirectory() as folder, LLM(max_model_len=1024, enable_lora=True) as llm:
    tokenizer = llm.get_tokenizer()
    path = sys.argv[1] if len(sys.argv) > 1 else random_adapter(Path(folder), tokenizer.encode(INVOCATION))
    judge = LoRARequest("judge", 1, path)
    invocation = json.loads(Path(path, "adapter_config.json").read_text())["alora_invocation_tokens"]
    document = tokenizer.encode(DOCUMENT)
    answers = []
    for what, more, adapter in (
        ("the base answers", tokenizer.encode(QUESTION), None),
        ("the adapter, with its invocation", invocation, judge),
        ("the base, with the same prompt", invocation, None),
        ("the adapter without its invocation is the base", tokenizer.encode(QUESTION), judge),
    ):
        prompt = {"prompt_token_ids": document + more}
        (output,) = llm.generate(prompt, params, use_tqdm=False, lora_request=adapter)
        answers.append(output.outputs[0].token_ids)
        print(f"{what}: {output.outputs[0].text!r}")
        print(f"  {len(document + more)} tokens, {output.num_cached_tokens} of them from the cache")
print("the adapter changes answers:", answers[1] != answers[2])
print("and none without its invocation:", answers[3] == answers[0])
