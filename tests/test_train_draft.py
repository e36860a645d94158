"""The example that trains a draft: what it learns from, what it learns, and what it says of it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from core import LLM, SamplingParams
from tests.tiny_models import save_checkpoint

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
NUM_TOKENS = 64
MAX_TOKENS = 24
PASSES = 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny model of random weights, its answers, and a draft that was trained on them for some steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        from draft_training import acceptance, layout, lessons, prompts, target, training

        directory = tmp_path_factory.mktemp("draft")
        model = str(save_checkpoint(directory / "model", num_hidden_layers=6))
        loaded = target.load_target(model)
        answers = lessons.write_answers(model, prompts.training_prompts(6, seed=0), MAX_TOKENS)
        read = lessons.read_states(model, answers, target.tapped_layers(loaded))
        torch.manual_seed(0)
        embedding = loaded.get_input_embeddings().weight.detach()
        head = loaded.get_output_embeddings().weight.detach()
        kept = lessons.likely_tokens(read, head, NUM_TOKENS, [loaded.config.eos_token_id])
        draft = target.draft_for(loaded, read, kept, 48)
        settings = training.Settings(seconds=60, steps=30, passes=PASSES, learning_rate=3e-3)
        losses = training.train(draft, read, embedding, head[kept], settings)
        out = directory / "out"
        layout.save(draft, loaded.config, out)
        layout.load(draft, out)
        return SimpleNamespace(
            acceptance=acceptance,
            layout=layout,
            target=target,
            model=model,
            loaded=loaded,
            lessons=read,
            draft=draft,
            embedding=embedding,
            head=head,
            losses=losses,
            kept=kept,
            out=out,
        )


def test_training_lowers_the_loss(trained: Any) -> None:
    losses = trained.losses
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_a_draft_is_read_back_as_it_was_published(trained: Any) -> None:
    config = json.loads((trained.out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["draft_vocab_size"] == len(trained.kept)
    again = trained.target.draft_for(trained.loaded, trained.lessons, trained.kept, 48)
    trained.layout.load(again, trained.out)
    for name, tensor in trained.draft.state_dict().items():
        stored = tensor.bfloat16().float() if tensor.is_floating_point() else tensor
        assert torch.equal(again.state_dict()[name], stored), name
    assert torch.equal(again.kept, trained.kept)
    assert torch.equal(again.t2d.nonzero()[:, 0], trained.kept)


def test_what_the_model_thought_gives_its_answers_with_the_samplers_noise(trained: Any) -> None:
    """The states are of the right tokens, and so is the noise: drafts that are the model's own are all accepted."""
    all_ids = torch.arange(len(trained.head))
    for lesson in trained.lessons:
        answer = lesson.answer
        actual = torch.tensor(answer.tokens[answer.first :])
        logits = F.linear(lesson.last[answer.first - 1 : -1].float(), trained.head)
        if answer.temperature:
            logits = logits / answer.temperature + trained.acceptance.noise_of(answer.seed, len(actual), all_ids)
        agreeing = (logits.argmax(dim=1) == actual).float().mean()
        assert agreeing > 0.9  # states are kept in bfloat16


def test_later_passes_are_those_of_a_draft_that_goes_on_alone(trained: Any) -> None:
    draft = trained.draft
    lesson = trained.lessons[0]
    tokens = torch.tensor([lesson.answer.tokens])
    embedded = F.embedding(tokens, trained.embedding)
    taps = lesson.taps.float()[None]
    known = 9
    with torch.inference_mode():
        thoughts = list(draft.passes(embedded, taps, PASSES))
        hidden = F.pad(draft.fc(taps), (0, 0, 1, 0))[:, :known]
        for number in range(PASSES):
            length = known + number
            alone = draft.midlayer(embedded[:, :length], hidden, [])
            torch.testing.assert_close(thoughts[number][:, length - 1], alone[:, -1], rtol=1e-4, atol=1e-5)
            hidden = torch.cat((hidden, alone[:, -1:]), dim=1)


def test_a_walk_goes_on_behind_the_first_wrong_draft(trained: Any) -> None:
    """From place 1 the first draft is right and 2 is the model's own; from 3 both are right and 5 is its own."""
    first = [False, True, True, True, True, True]
    second = [False, True, False, True, True, True]
    total = trained.acceptance.walk([np.array([first, second])], 2)
    assert (total.steps, total.tokens) == (2, 5)
    assert (total.offered, total.accepted) == ([2, 2], [2, 1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_engine_accepts_what_was_worked_out(trained: Any, temperature: float) -> None:
    count = 2
    lessons = [lesson for lesson in trained.lessons if lesson.answer.temperature == temperature]
    found = trained.acceptance.drafted(trained.draft, lessons, trained.embedding, count)
    expected = trained.acceptance.walk(found["shared" if temperature else "greedy"], count)
    params = [
        SamplingParams(temperature=temperature, seed=lesson.answer.seed, max_tokens=MAX_TOKENS) for lesson in lessons
    ]
    prompts = [{"prompt_token_ids": lesson.answer.tokens[: lesson.answer.first]} for lesson in lessons]
    config = {"method": "eagle3", "model": str(trained.out), "num_speculative_tokens": count, "adaptive": False}
    with LLM(model=trained.model, max_model_len=256, speculative_config=config, use_tqdm_on_load=False) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        accepted = llm.stats().spec_num_accepted_tokens
    for output, lesson in zip(outputs, lessons, strict=True):
        assert list(output.outputs[0].token_ids) == lesson.answer.tokens[lesson.answer.first :]
    assert sum(expected.accepted) > 0
    assert abs(accepted - sum(expected.accepted)) <= 1  # states are kept in bfloat16
