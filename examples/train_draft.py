"""Train a draft for a small model on the model's own answers: `python examples/train_draft.py --out DRAFT --minutes 20`.

The model answers prompts, every other one greedily. From what it thought meanwhile, a draft in EAGLE-3's layout learns to
guess the next tokens. Then it is measured on topics that it has not seen, and is ready to be served:

    core serve --speculative-config '{"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 2}'

Answers and hidden states stay in DRAFT/lessons.pt for another run with other settings; delete it to have them made again.
For models whose layers are built as Llama's. Reading a GGUF file needs `pip install gguf`.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import torch
from draft_training import acceptance, layout, lessons, prompts, target, training
from draft_training.draft import Draft
from rich.console import Console
from rich.table import Table
from torch import Tensor

from core_config.locating.default_model import default_model

LESSONS = "lessons.pt"
HELD_OUT = "held_out.json"
console = Console()


def main() -> None:
    given = arguments()
    if given.threads:
        torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    model = given.model or str(default_model())
    given.out.mkdir(parents=True, exist_ok=True)
    loaded = target.load_target(model)
    train_lessons, held_out = lessons_of(given, model, target.tapped_layers(loaded))
    answers = [lesson.answer for lesson in train_lessons]
    embedding = loaded.get_input_embeddings().weight.detach()
    head = loaded.get_output_embeddings().weight.detach()
    kept = lessons.likely_tokens(train_lessons, head, given.vocabulary, end_tokens(loaded.config.eos_token_id))
    intermediate = given.intermediate_size or loaded.config.intermediate_size
    draft = target.draft_for(loaded, train_lessons, kept, intermediate)
    tokens = sum(len(answer.tokens) - answer.first for answer in answers)
    known = acceptance.known([lesson.answer for lesson in held_out], kept)
    size = sum(parameter.numel() for parameter in draft.parameters())
    console.print(
        f"{len(answers)} answers of {tokens} tokens; the draft has {size / 1e6:.2f} M weights and {len(kept)} tokens, "
        f"which are {known:.1%} of the held-out answers"
    )
    settings = training.Settings(
        seconds=60 * given.minutes,
        passes=given.passes,
        learning_rate=given.learning_rate,
        autocast=given.autocast,
        seed=given.seed,
    )
    losses = training.train(draft, train_lessons, embedding, head[kept], settings)
    edge = max(1, len(losses) // 20)
    first = sum(losses[:edge]) / edge
    latest = sum(losses[-edge:]) / edge
    console.print(f"{len(losses)} steps, loss {first:.3f} to {latest:.3f}")
    layout.save(draft, loaded.config, given.out)
    layout.load(draft, given.out)
    report(draft, held_out, embedding, given.passes)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a directory, a name or a GGUF file; the embedded default when left out")
    parser.add_argument("--out", type=Path, required=True, help="directory of the draft")
    parser.add_argument("--minutes", type=float, default=20, help="of training, behind answering")
    parser.add_argument("--prompts", type=int, default=600)
    parser.add_argument("--held-out", type=int, default=40, help="prompts that only measure")
    parser.add_argument("--max-tokens", type=int, default=160, help="of an answer")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens that the draft knows")
    parser.add_argument("--intermediate-size", type=int, help="of the draft's MLP; the model's own when left out")
    parser.add_argument("--passes", type=int, default=2, help="tokens that the draft learns to look ahead")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--autocast", action="store_true", help="multiply in bfloat16")
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def lessons_of(
    given: argparse.Namespace, model: str, layers: tuple[int, int, int]
) -> tuple[list[lessons.Lesson], list[lessons.Lesson]]:
    """Those to learn from, and the held-out ones."""
    path = given.out / LESSONS
    if path.exists():
        console.print(f"lessons from {path}")
        with torch.serialization.safe_globals([lessons.Lesson, lessons.Answer]):
            stored = torch.load(path, weights_only=True)
        return stored["training"], stored["held_out"]
    asked = prompts.held_out_prompts(given.held_out, given.seed)
    (given.out / HELD_OUT).write_text(json.dumps(asked, indent=1) + "\n")
    everything = [*asked, *prompts.training_prompts(given.prompts, given.seed)]
    answers = lessons.write_answers(model, everything, given.max_tokens)
    read = lessons.read_states(model, answers, layers)
    held_out = [lesson for lesson in read if lesson.answer.seed < len(asked)]
    learned = [lesson for lesson in read if lesson.answer.seed >= len(asked)]
    torch.save({"training": learned, "held_out": held_out}, path)
    return learned, held_out


def end_tokens(given: int | list[int] | None) -> list[int]:
    if given is None:
        return []
    return given if isinstance(given, list) else [given]


def report(draft: Draft, held_out: list[lessons.Lesson], embedding: Tensor, passes: int) -> None:
    """Print what the target would accept, with up to `passes` drafts a step."""
    found = acceptance.drafted(draft, held_out, embedding, passes)
    table = Table(title="held-out answers")
    for name in ("drafts drawn", "drafts a step", "accepted by place", "tokens a step"):
        table.add_column(name)
    for name, answers in found.items():
        for count in range(1, passes + 1):
            total = acceptance.walk(answers, count)
            rates = ", ".join(f"{rate:.3f}" for rate in total.rates)
            table.add_row(name, str(count), rates, f"{total.tokens_per_step:.3f}")
    console.print(table)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
