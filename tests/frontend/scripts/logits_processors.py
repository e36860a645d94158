"""A custom logits processor, passed as a class, that requests ask for; prompts are queued and waited for."""

import sys

import torch
from vllm import LLM, SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates


class Target(LogitsProcessor):
    @classmethod
    def validate_params(cls, params: SamplingParams):
        target = params.extra_args and params.extra_args.get("target_token")
        if target is not None and not isinstance(target, int):
            raise ValueError("target_token must be an integer")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        self.targets: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None):
        process_dict_updates(
            self.targets,
            batch_update,
            lambda params, _, __: params.extra_args and params.extra_args.get("target_token"),
        )

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.targets:
            return logits
        columns = torch.tensor(list(self.targets.values()), device=logits.device)
        rows = torch.tensor(list(self.targets.keys()), device=logits.device)
        kept = logits[rows, columns].clone()
        logits[rows] = float("-inf")
        logits[rows, columns] = kept
        return logits


def main():
    llm = LLM(model=sys.argv[2], max_model_len=128, kv_cache_memory_bytes="8M", logits_processors=[Target])
    params = [
        SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, extra_args={"target_token": 128}),
        SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True),
        SamplingParams(temperature=1.0, max_tokens=2, ignore_eos=True, extra_args={"target_token": 67}),
    ]
    ids = llm.enqueue(["Hello, my name is", "The president of the", "The capital of France"], params)
    print(len(set(ids)))
    for output in llm.wait_for_completion(use_tqdm=False):
        tokens = output.outputs[0].token_ids
        print(len(tokens), len(set(tokens)) == 1 and tokens[0] in (67, 128))


if __name__ == "__main__":
    main()
