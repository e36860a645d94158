"""Conversations of several turns with tiny models, for the contract of the prefix cache (docs/kv.md).

Owns: checkpoints of every kind of layer, the engines of a case and its turns, all drawn by a seed, and what an engine without a
cache answers. Never does: start pytest. Called by: `test_contract.py`.
"""

import itertools
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Mamba2Config, PreTrainedModel, Qwen3NextConfig

from core import LLM, SamplingParams
from core_frontend.library.lora_request import LoRARequest
from tests.declared_models import FAMILIES as DECLARED_FAMILIES
from tests.declared_models import save_declared
from tests.families.architectures import tiny_values
from tests.families.oracle import randomize
from tests.families.published import PUBLISHED
from tests.inside import core_of
from tests.kv.next_turn import save_in_idle_time
from tests.tiny_models import SHAPE, save_checkpoint

MORE_STATES = ("mamba", "falcon_h1", "granitemoehybrid", "jamba", "nemotron_h", "qwen3_5_text")
"""Other families with states, whose configurations are those of `tests.families`."""
MORE_STREAMS = ("gemma3n_text", "zamba2", "solar", "plamo3", "step3_text")
"""Families whose blocks read more than what the block before makes: several streams and pages of earlier layers, what a shared
block put aside, an earlier stream; and norms on both sides, and queries from a latent.
"""
INDEXED = ("axk2", "glm_moe_dsa", "deepseek_v32")
"""Families whose latent attention reads the keys that an index chooses, of each layer or of an earlier one."""
FAMILIES = (
    *("llama", "gemma3", "deepseek_v3", "lfm2", "qwen3_next", "mamba2", "nemotron"),
    *MORE_STATES,
    *MORE_STREAMS,
    *INDEXED,
)
"""Full attention, windows, latent attention, short convolutions, gated delta nets, Mamba 2, and others."""
WITHIN_ENGINES = ("kept", "host", "disk", "crowded", "preempted")
CONNECTED = ("shm", "file", "multi")
"""Ways in which each turn has an engine of its own, which finds the earlier turns in a connector of this name."""
WAYS = (*WITHIN_ENGINES, "restart", "slept", "swapped", *CONNECTED)
"""How keys, values and states leave the memory of the engine, if they do. crowded: all conversations compete for it.

slept: at level 2. swapped: other weights, and back. preempted: requests are, again and again.
"""
ODD_HEADS = ("jamba", "zamba2")
"""Families whose heads of 12 and 24 plain torch would compute, with bits that depend on chunks and drafts: they have others."""
PUBLISHED_SIZES = {"num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 512, "eos_token_id": 2}
"""Of models that transformers has no code for: heads of a size that the processor's own kernels take."""
LETTERS = (68, 69, 70, 71)
"""Tokens of a, b, c and d. With so few, n-grams often guess right, and stop strings occur."""
NUM_TURNS = 4
PREEMPTED_EVERY = 9
"""Steps from one preemption to the next, fewer than the tokens of most answers."""
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
    if family in DECLARED_FAMILIES:
        return save_declared(path, family)
    if family in PUBLISHED:
        return PUBLISHED[family](**PUBLISHED_SIZES).save(path)
    if family not in ("qwen3_next", "mamba2", "nemotron", *MORE_STATES, *MORE_STREAMS):
        return save_checkpoint(path, family=family)
    save_checkpoint(path)
    (path / "model.safetensors").unlink()
    _model(family).save_pretrained(path)
    return path


def other_weights(path: Path, other: Path) -> Path:
    """Write a checkpoint of the same model with other weights."""
    shutil.copytree(path, other)
    weights = load_file(path / "model.safetensors")
    halved = {name: tensor if tensor.itemsize == 1 else 0.5 * tensor for name, tensor in weights.items()}
    save_file(halved, other / "model.safetensors", {"format": "pt"})
    return other


def _model(family: str) -> PreTrainedModel:
    if family == "mamba2":
        return AutoModelForCausalLM.from_config(Mamba2Config(**MAMBA))
    if family == "qwen3_next":
        return AutoModelForCausalLM.from_config(Qwen3NextConfig(**{**SHAPE, **DELTA}))
    values = tiny_values(family)
    if family in ODD_HEADS:
        values |= {"num_attention_heads": 3, "num_key_value_heads": 3}
    config = CONFIG_MAPPING[family](**values)
    if hasattr(config, "max_position_embeddings"):
        config.max_position_embeddings = 512
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    return model


@dataclass
class Turn:
    """One request of a conversation, and what an engine without a cache answers to it.

    params: without a stop string. stop: a stop string, or empty.
    num_known: tokens of the prompt that are an earlier prompt and answer. adapter: None: the base model.
    """

    prompt: list[int]
    params: dict[str, Any]
    stop: str
    num_known: int
    adapter: LoRARequest | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    text: str = ""

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(**self.params, stop=self.stop or None)


class Case:
    """The engines and conversations of one seed.

    way: how memory is lost. plain: an engine of the model without a cache. options: more arguments of the engines.
    adapters: of the conversations in turn; None: the base model.
    """

    def __init__(
        self,
        path: Path,
        way: str,
        seed: int,
        plain: LLM,
        pages: Path,
        adapters: Sequence[LoRARequest | None] = (None,),
        **options: Any,
    ) -> None:
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
        self.options |= self._places(pages)
        self.options |= options
        self.histories: list[list[int]] = [[] for _ in range(3)]
        self.other = other_weights(path, pages.parent / "other") if way == "swapped" else path
        self.adapters = [adapters[number % len(adapters)] for number in range(len(self.histories))]

    def _places(self, pages: Path) -> dict[str, Any]:
        """Arguments for the places to which keys, values and states go."""
        if self.way in CONNECTED:
            near, far = ({"directory": str(pages / name), "size": 0.1} for name in ("near", "far"))
            parts = [{"kv_connector": "file", "kv_connector_extra_config": own} for own in (near, far)]
            own = {"connectors": parts} if self.way == "multi" else near
            return {"kv_connectors": [self.way], "kv_connectors_config": {self.way: own}}
        places: dict[str, Any] = {} if self.way in ("kept", "slept") else {"kv_offloading_size": 0.1}
        if self.way in ("disk", "restart", "slept", "swapped"):
            places["kv_offloading_disk_path"] = str(pages)
        if self.way == "slept":
            places["enable_sleep_mode"] = True
        return places

    def run(self) -> int:
        """Run all turns and check each against the engine without a cache. Returns the number of answers that were checked."""
        llm, num_checked = LLM(**self.options), 0
        if self.way == "swapped":
            llm.update_weights(path=self.options["model"], weight_version="first")
        for turn in range(NUM_TURNS):
            turns = [self._next(number) for number in range(len(self.histories))]
            with _preempting(llm) if self.way == "preempted" else nullcontext():
                outputs = _ask(llm, turns)
            self._check(turn, turns, outputs)
            num_checked += len(outputs)
            self.histories = [self._history(turn) for turn in turns]
            llm = self._lose(llm)
        llm.close()
        return num_checked

    def _lose(self, llm: LLM) -> LLM:
        """Lose the memory of an engine; returns the engine of the next turn."""
        if self.way in ("host", "disk"):
            self._evict(llm)
        elif self.way == "slept":
            llm.sleep(2)
            llm.wake_up()
        elif self.way == "swapped":
            save_in_idle_time(llm)
            llm.update_weights(path=str(self.other), weight_version="second")
            self._evict(llm)
            llm.update_weights(path=self.options["model"], weight_version="first")
        elif self.way == "restart" or self.way in CONNECTED:
            llm.close()
            llm = LLM(**self.options)
        return llm

    def _next(self, number: int) -> Turn:
        """The next turn of a conversation, with its answer."""
        chance, history = self.chance, self.histories[number]
        prompt = history + [chance.randrange(4, 260) for _ in range(chance.randint(1, 50))]
        params = {
            "max_tokens": chance.randint(1, 60),
            "temperature": chance.choice([0.0, 0.9]),
            "seed": chance.randrange(1 << 30),
            "logprobs": 2,
            "allowed_token_ids": list(LETTERS),
        }
        turn = Turn(prompt, params, "", len(history), self.adapters[number])
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


@contextmanager
def _preempting(llm: LLM) -> Iterator[None]:
    """Meanwhile some steps preempt a running request before they are planned, as for lack of blocks."""
    admission = core_of(llm).scheduler._admission
    make_way, num_steps = admission.make_way, itertools.count(1)

    def preempt_and_make_way(planner: Any) -> None:
        running = admission.state.running
        # Steps without a running request, such as those that only end what is in flight, preempt none and count for none.
        if running.sequences and next(num_steps) % PREEMPTED_EVERY == 0:
            admission.state.preempt(running.sequences[-1], planner.plan)
        make_way(planner)

    admission.make_way = preempt_and_make_way
    before = llm.stats().num_preemptions
    try:
        yield
        assert llm.stats().num_preemptions > before or next(num_steps) <= PREEMPTED_EVERY
    finally:
        admission.make_way = make_way


def _ask(llm: LLM, turns: list[Turn]) -> list[Any]:
    prompts = [{"prompt_token_ids": turn.prompt} for turn in turns]
    adapters = None if all(turn.adapter is None for turn in turns) else [turn.adapter for turn in turns]
    return llm.generate(prompts, [turn.sampling for turn in turns], use_tqdm=False, lora_request=adapters)


def _numbers(choice: Any) -> list[dict[int, float]]:
    return [{token: entry.logprob for token, entry in row.items()} for row in choice.logprobs]
