"""What transformers says: a checkpoint of random weights, its logits and its greedy tokens, kept on disk.

Owns: the random weights and the reference results. Never does: use a class of caches (each token is computed from the whole
sequence), or run anything of ours. Called by: the tests of rows, the command line.
"""

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from core_kit.checkpoints import write_tokenizer
from tests.families.architectures import ENCODERS, USUAL, WRAPPERS, tiny_config, tiny_values, told

CACHE = Path(__file__).parent.parent / ".cache" / "families"
VERSION = 3
"""Of the way in which weights and results are made; a new one makes them anew."""
LENGTHS = (37, 11)
ATTENTION = {"falcon": "sdpa"}
"""Architectures whose `eager` attention is wrong: Falcon's adds its slopes twice."""
TEXT_ALONE = {"llama4": "language_model"}
"""Wrappers whose own forward fails (transformers 5.24 reads `image_outputs` of the text's output, which has none), and
their part that gives the same logits of text."""
OF_PICTURES = ("mistral4",)
"""Decoders that transformers lists among models of pictures alone."""
COMPUTED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Tensors that are saved although their values follow from the configuration."""
NUM_TOKENS = 32
MARGIN = 2e-3
"""Least distance of each greedy token from the second best, so that rounding cannot choose."""
MOST_TRIES = 12
TIED = 0.2
MOST_PARAMETERS = 2_000_000


@dataclass(frozen=True, slots=True)
class Reference:
    """One architecture, with random weights.

    path: the checkpoint, as transformers saves it, with a byte tokenizer.
    prompts: token ids.
    logits: float32 [T, V] of each prompt; hidden states [T, H] of encoders.
    prompt: token ids of the one that is continued.
    tokens: the greedy continuation of `prompt`; none for encoders.
    encodes: whether this is an encoder.
    """

    path: Path
    prompts: list[list[int]]
    logits: list[Tensor]
    prompt: list[int]
    tokens: list[int]
    encodes: bool


def reference(model_type: str, variant: str = "plain") -> Reference:
    """The reference of one architecture, from the disk where it was made before."""
    values = tiny_values(model_type, variant)
    versions = [VERSION, transformers.__version__, torch.__version__]
    if model_type in ATTENTION:
        versions.append(ATTENTION[model_type])
    described = json.dumps([*versions, values], sort_keys=True, default=str)
    digest = hashlib.sha256(described.encode()).hexdigest()[:12]
    name = f"{model_type}-{variant}".replace(" ", "_").replace(",", "")
    path = CACHE / f"{name}-{digest}"
    if not path.exists():
        _make(path, model_type, variant)
    known = torch.load(path / "reference.pt", weights_only=True)
    encodes = model_type in ENCODERS
    return Reference(path, known["prompts"], known["logits"], known["prompt"], known["tokens"], encodes)


def build(model_type: str, variant: str = "plain") -> PreTrainedModel:
    """The model, with random weights."""
    torch.manual_seed(11)
    config = tiny_config(model_type, variant)
    kind = auto_class(model_type)
    with torch.device("meta"):
        size = kind.from_config(config).num_parameters()
    if size > MOST_PARAMETERS:
        raise ValueError(f"{model_type} would have {size} parameters; its table lacks a key that makes it tiny")
    model: PreTrainedModel = kind.from_config(config, dtype=torch.float32, attn_implementation="eager")
    randomize(model)
    return model.eval()


def load(path: Path, model_type: str) -> PreTrainedModel:
    """The model as transformers reads it from a checkpoint, which is what counts: some configurations change on the way."""
    kind = auto_class(model_type)
    model: PreTrainedModel = kind.from_pretrained(
        path, dtype=torch.float32, attn_implementation=ATTENTION.get(model_type, "eager")
    )
    return model.eval()


def auto_class(model_type: str) -> Any:
    """The class of transformers that makes a model of this type."""
    if model_type in ENCODERS:
        return AutoModel
    if model_type in (*WRAPPERS, *OF_PICTURES):
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def randomize(model: PreTrainedModel) -> None:
    """Give every tensor that is saved values of its own, near enough to its initial ones that the model stays sane."""
    generator = torch.Generator().manual_seed(5)
    saved = model.state_dict(keep_vars=True)
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    tied = head is not None and head.weight is embedding
    done: set[int] = set()
    with torch.no_grad():
        for name, tensor in saved.items():
            if id(tensor) in done or not tensor.is_floating_point() or name.endswith(COMPUTED):
                continue
            done.add(id(tensor))
            values = _random(name, tensor, generator)
            if tied and tensor is embedding:
                values *= TIED  # else the model's favourite token is the one that it read
            tensor.copy_(values)


def _random(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Vectors lie around what they were (one or zero); matrices keep the size of what they multiply."""
    noise = torch.randn(tensor.shape, generator=generator)
    around = tensor.ndim < 2 or name.endswith(("A_log", "norm.weight", "dt_bias"))
    if around:
        return tensor + 0.2 * noise
    if "embed" in name or "wte" in name:
        return 0.7 * noise
    inputs = tensor[0].numel() if tensor.ndim != 3 or tensor.shape[1] == 1 else min(tensor.shape[1:])
    return 1.2 * noise / inputs**0.5


@torch.inference_mode()
def logits_of(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """float32 [T, V] (hidden states [T, H] of an encoder) of one sequence."""
    given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    if not hasattr(model, "lm_head") and model.get_output_embeddings() is None:
        return model(**given).last_hidden_state[0].clone()
    part = TEXT_ALONE.get(model.config.model_type)
    speaker = model if part is None else model.get_submodule(part)
    output = speaker(**given, use_cache=False)
    return output.logits[0].float().clone()


def hidden_states(model: PreTrainedModel, ids: list[int]) -> list[Tensor]:
    """float32 [T, H]: the embeddings and what leaves each block, the last one behind the final norm in most models."""
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    return [state[0].clone() for state in output.hidden_states]


def _prompt(number: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(4, 259, (length,), generator=generator).tolist()


def _greedy(model: PreTrainedModel) -> tuple[list[int], list[int]]:
    """A prompt whose continuation is beyond doubt, and the continuation."""
    best: tuple[float, list[int], list[int]] = (-1.0, [], [])
    for number in range(MOST_TRIES):
        prompt = _prompt(100 + number, 19)
        tokens: list[int] = []
        margin = float("inf")
        while len(tokens) < NUM_TOKENS and margin >= MARGIN:
            last = logits_of(model, prompt + tokens)[-1]
            first, second = last.topk(2).values.tolist()
            margin = min(margin, first - second)
            tokens.append(int(last.argmax()))
        if len(tokens) == NUM_TOKENS and margin > best[0]:
            best = margin, prompt, tokens
        if best[0] >= MARGIN:
            break
    return best[1], best[2]


def _make(path: Path, model_type: str, variant: str) -> None:
    """Write the checkpoint and the results, all or nothing."""
    CACHE.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=CACHE))
    model = build(model_type, variant)
    model.save_pretrained(made)
    if variant == USUAL:
        (made / "config.json").write_text(json.dumps(told(model.config)))
    write_tokenizer(made)
    model = load(made, model_type)
    prompts = [_prompt(number, length) for number, length in enumerate(LENGTHS)]
    logits = [logits_of(model, ids) for ids in prompts]
    prompt: list[int] = []
    tokens: list[int] = []
    if model_type not in ENCODERS:
        prompt, tokens = _greedy(model)
    results = {"prompts": prompts, "logits": logits, "prompt": prompt, "tokens": tokens}
    torch.save(results, made / "reference.pt")
    try:
        os.replace(made, path)
    except OSError:  # another process was first
        shutil.rmtree(made)
