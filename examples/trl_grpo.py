"""Reinforcement learning with TRL on one machine: `pip install trl`, then `python examples/trl_grpo.py [MODEL]`.

TRL's GRPOTrainer computes rewards, advantages and gradients. The engine, in the same process, answers its prompts and takes the
trainer's weights behind each step through shared memory, without a copy on a disk. The reward here is the share of
letters in an answer: replace it by yours.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from core import LLM, SamplingParams, SharedTensors

PROMPTS = ["The sea is", "The sky is", "A tree has", "In summer the"]


def reward(completions: list[str], **_: Any) -> list[float]:
    """Share of the letters from A to Z in each answer."""
    return [sum(letter.isascii() and letter.isalpha() for letter in text) / max(len(text), 1) for text in completions]


class Rollouts:
    """Answers of the engine in the form that TRL asks for. `update` gives the engine the trainer's weights."""

    def __init__(self, model: str) -> None:
        self.llm = LLM(model=model, max_model_len=128)
        self.num_updates = 0

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Answer each prompt once: TRL repeats a prompt for each answer of its group."""
        settings = trainer.args
        params = SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_completion_length,
            logprobs=0,
        )
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        answers = [output.outputs[0] for output in outputs]
        chosen = [
            [step[token].logprob for step, token in zip(answer.logprobs, answer.token_ids, strict=True)]
            for answer in answers
        ]
        return {
            "prompt_ids": [list(output.prompt_token_ids) for output in outputs],
            "completion_ids": [list(answer.token_ids) for answer in answers],
            "logprobs": chosen,
        }

    def update(self, model: Any) -> None:
        """Replace the engine's weights by the trainer's. Cached prefixes of the older ones are dropped."""
        self.num_updates += 1
        with SharedTensors(model.state_dict()) as shared:
            self.llm.update_weights(shared.update(f"step-{self.num_updates}"))


class AfterEachStep(TrainerCallback):
    """Gives the engine the weights of every optimizer step."""

    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts = rollouts

    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        self.rollouts.update(model)


def train(model: str, steps: int = 4) -> Rollouts:
    """Train a model for some steps; return the engine, which has the last step's weights."""
    rollouts = Rollouts(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
            rollout_func=rollouts,
            callbacks=[AfterEachStep(rollouts)],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=16,
                learning_rate=1e-3,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                bf16=False,
            ),
        )
        trainer.train()
    return rollouts


if __name__ == "__main__":
    done = train(sys.argv[1] if len(sys.argv) > 1 else "HuggingFaceTB/SmolLM2-135M-Instruct")
    print(f"the engine has {done.llm.weight_version}:", done.llm.generate(PROMPTS[:1])[0].outputs[0].text)
