"""Conversations of several turns with tiny models, for the contract of the prefix cache (docs/kv.md).

Owns: checkpoints of every kind of layer, the engines of a case and its turns, all drawn by a seed, and what an engine without a
cache answers. Never does: start pytest. Called by: `test_contract.py`.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Mamba2Config, PreTrainedModel, Qwen3NextConfig

from core import LLM, SamplingParams
from tests.families.architectures import tiny_config
from tests.families.oracle import randomize
from tests.tiny_models import SHAPE, save_checkpoint

MORE_STATES = ("mamba", "falcon_h1", "granitemoehybrid", "jamba", "nemotron_h", "qwen3_5_text")
"""Other families with states, whose configurations are those of `tests.families`."""
FAMILIES = ("llama", "gemma3", "deepseek_v3", "lfm2", "qwen3_next", "mamba2", *MORE_STATES)
"""Full attention, windows, latent attention, short convolutions, gated delta nets, Mamba 2, and others with states."""
WAYS = ("kept", "host", "disk", "restart", "crowded")
"""How keys, values and states leave the memory of the engine, if they do; crowded: all conversations compete for it."""
LETTERS = (68, 69, 70, 71)
"""Tokens of a, b, c and d. With so few, n-grams often guess right, and stop strings occur."""
NUM_TURNS = 4
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
    "head_dim": 16, "decoder_sparse_step": 1, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
MAMBA = {
    "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "expand": 2, "chunk_size": 8, "hidden_size": 64,
    "num_hidden_layers": 2, "vocab_size": 260, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def checkpoint(family: str, path: Path) -> Path:
    """Write a checkpoint of random weights."""
    if family not in ("qwen3_next", "mamba2", *MORE_STATES):
        return save_checkpoint(path, family=family)
    save_checkpoint(path)
    (path / "model.safetensors").unlink()
    _model(family).save_pretrained(path)
    return path


def _model(family: str) -> PreTrainedModel:
    if family == "mamba2":
        return AutoModelForCausalLM.from_config(Mamba2Config(**MAMBA))
    if family == "qwen3_next":
        return AutoModelForCausalLM.from_config(Qwen3NextConfig(**{**SHAPE, **DELTA}))
    config = tiny_config(family)
    if family == "jamba":  # plain torch would compute its heads of 12, with bits that depend on chunks and drafts
        config.num_attention_heads = config.num_key_value_heads = 3
    if hasattr(config, "max_position_embeddings"):
        config.max_position_embeddings = 512
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    return model


@dataclass
class Turn:
    """One request of a conversation, and what an engine without a cache answers to it.

    params: without a stop string. stop: a stop string, or empty.
    num_known: tokens of the prompt that are an earlier prompt and answer.
    """

    prompt: list[int]
    params: dict[str, Any]
    stop: str
    num_known: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    text: str = ""

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(**self.params, stop=self.stop or None)


class Case:
    """The engines and conversations of one seed.

    way: how memory is lost. plain: an engine of the model without a cache. options: more arguments of the engines.
    """

    def __init__(self, path: Path, way: str, seed: int, plain: LLM, pages: Path, **options: Any) -> None:
        self.chance = random.Random(f"{way} {seed}")
        self.way = way
        self.plain = plain
        self.block_size = self.chance.choice([8, 16])
        self.options: dict[str, Any] = {
            "model": str(path),
            "block_size": self.block_size,
            "max_num_batched_tokens": self.chance.choice([24, 64, 256]),
            "async_scheduling": self.chance.choice([True, False]),
            "use_tqdm_on_load": False,
            "max_model_len": 512,
            "max_num_seqs": 4,
            "num_gpu_blocks_override": 1200,
        }
        if self.chance.random() < 0.5:
            self.options["speculative_config"] = NGRAM
        if way in ("host", "disk", "crowded"):
            self.options["num_gpu_blocks_override"] = 1600 // self.block_size
        if way != "kept":
            self.options["kv_offloading_size"] = 0.1
        if way in ("disk", "restart"):
            self.options["kv_offloading_disk_path"] = str(pages)
        self.options |= options
        self.histories: list[list[int]] = [[] for _ in range(3)]

    def run(self) -> None:
        """Run all turns and check them."""
        llm = LLM(**self.options)
        for turn in range(NUM_TURNS):
            turns = [self._next(history) for history in self.histories]
            self._check(turn, turns, _ask(llm, turns))
            self.histories = [self._history(turn) for turn in turns]
            if self.way in ("host", "disk"):
                self._evict(llm)
            elif self.way == "restart":
                llm.close()
                llm = LLM(**self.options)
        llm.close()

    def _next(self, history: list[int]) -> Turn:
        """The next turn of a conversation, with its answer."""
        chance = self.chance
        prompt = history + [chance.randrange(4, 260) for _ in range(chance.randint(1, 50))]
        params = {
            "max_tokens": chance.randint(1, 60),
            "temperature": chance.choice([0.0, 0.9]),
            "seed": chance.randrange(1 << 30),
            "logprobs": 2,
            "allowed_token_ids": list(LETTERS),
        }
        turn = Turn(prompt, params, "", len(history))
        (output,) = _ask(self.plain, [turn])
        choice = output.outputs[0]
        turn.tokens, turn.logprobs, turn.text = list(choice.token_ids), _numbers(choice), choice.text
        length = chance.choice([0, 2, 9, 40])
        if length and len(turn.text) > length:
            start = chance.randint(0, len(turn.text) - length)
            turn.stop = turn.text[start : start + length]
            turn.text = turn.text[: turn.text.index(turn.stop)]
        return turn

    def _check(self, number: int, turns: list[Turn], outputs: list[Any]) -> None:
        for turn, output in zip(turns, outputs, strict=True):
            (choice,) = output.outputs
            where = f"turn {number}, {self.options}"
            assert choice.text == turn.text, where
            length = len(choice.token_ids)
            assert list(choice.token_ids) == turn.tokens[:length], where
            assert _numbers(choice) == turn.logprobs[:length], where
            num_again = turn.num_known - output.num_cached_tokens
            assert num_again <= self.block_size, f"{num_again} known tokens of {turn.num_known} computed again, {where}"

    def _history(self, turn: Turn) -> list[int]:
        """What a client knows after a turn: its prompt and the text of the answer, one token a letter."""
        return turn.prompt + turn.tokens[: len(turn.text)]

    def _evict(self, llm: LLM) -> None:
        """Push everything out of the engine's memory."""
        others = [[self.chance.randrange(4, 260) for _ in range(400)] for _ in range(6)]
        llm.generate([{"prompt_token_ids": tokens} for tokens in others], SamplingParams(max_tokens=1), use_tqdm=False)


def _ask(llm: LLM, turns: list[Turn]) -> list[Any]:
    prompts = [{"prompt_token_ids": turn.prompt} for turn in turns]
    return llm.generate(prompts, [turn.sampling for turn in turns], use_tqdm=False)


def _numbers(choice: Any) -> list[dict[int, float]]:
    return [{token: entry.logprob for token, entry in row.items()} for row in choice.logprobs]
