"""Logits processors behind their guard: who fails, fails alone; a row is what it is in any company."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from engine.fakes import make_config
from executor.own_processors import ByRequest, Counts, Late, Shifts, Target
from sampling.reference import Result, Row, Running, draw, sequence
from transformers import MinPLogitsWarper

from core.api.errors import UserError
from core.api.sampling_params import SamplingParams
from core.plugin.table import PluginTable
from core_runtime.executor.processors.indexed import IndexedProcessor
from core_runtime.executor.processors.loading import load_processors
from core_runtime.executor.processors.logits_processors import LogitsProcessors, NamedProcessor
from core_runtime.sampling import Sampler
from core_runtime.specs.vllm_config import VllmConfig

VOCAB = 64
CONFIG = VllmConfig(make_config())


def guarded(*processors: Any, limit_s: float = 5.0) -> LogitsProcessors:
    named = [NamedProcessor(f"logits processor {type(one).__name__}", one) for one in processors]
    return LogitsProcessors(named, limit_s)


def of_vllm(cls: type[Any]) -> IndexedProcessor:
    return IndexedProcessor(lambda: cls(CONFIG, torch.device("cpu"), False))


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


class Batch:
    """Sequences with processors, and a sampler that calls these."""

    def __init__(self, processors: LogitsProcessors) -> None:
        self.processors = processors
        self.sampler = Sampler(VOCAB, custom=processors)
        self.count = 0

    def add(self, extra: dict[str, Any] | None = None, **params: Any) -> Running:
        running = sequence(choice=self.count, seed=7, extra_args=extra, **params)
        self.count += 1
        self.processors.start(running.request, running.state)
        return running

    def draw(self, given: torch.Tensor, rows: Sequence[Running | Row]) -> list[Result]:
        return draw(self.sampler, given, [row if isinstance(row, Row) else Row(row) for row in rows])


def test_a_row_is_the_same_in_any_company() -> None:
    shifts = Shifts()
    batch = Batch(guarded(shifts))
    given = logits(20)
    wanted = [None if place % 3 == 0 else {"shift": 3.0 + place} for place in range(20)]
    rows = [
        batch.add(extra, temperature=0.0 if place % 2 else 0.8, output=[place], logprobs=2)
        for place, extra in enumerate(wanted)
    ]
    together = batch.draw(given, rows)
    assert max(shifts.sizes) > 5, "rows come many at a time"
    for place, running in enumerate(rows):
        assert batch.draw(given[place : place + 1], [running]) == [together[place]]
        changed = given[place].clone()
        if wanted[place]:
            changed[place + 1] += 3.0 + place
        plain = sequence(choice=place, seed=7, temperature=running.params.temperature)
        plain.extend([place])
        assert draw(Sampler(VOCAB), changed[None], [Row(plain)])[0].token_id == together[place].token_id


def test_requests_that_ask_for_nothing_are_never_shown_to_a_processor() -> None:
    shifts = Shifts()
    batch = Batch(guarded(shifts))
    rows = [batch.add(), batch.add({"other": 1}), batch.add(logit_bias={3: 1.0})]
    found = batch.draw(logits(3), rows)
    assert not shifts.sizes and not shifts.known
    plain = [sequence(choice=place, seed=7, **extra) for place, extra in enumerate([{}, {}, {"logit_bias": {3: 1.0}}])]
    assert [one.token_id for one in found] == [
        one.token_id for one in draw(Sampler(VOCAB), logits(3), [Row(running) for running in plain])
    ]


def test_drafts_are_verified_with_what_the_processor_sees_behind_them() -> None:
    batch = Batch(guarded(Shifts()))
    running = batch.add({"shift": 100.0}, temperature=0.0, output=[5])
    rows = [Row(running), Row(running, [6]), Row(running, [6, 7])]
    found = [batch.draw(logits(1, seed), [row])[0].token_id for seed, row in enumerate(rows)]
    assert found == [6, 7, 8]
    assert batch.draw(logits(1), [Row(running, [9])])[0].token_id == 10, "other drafts are other rows"


FAULTS = {
    "raises": "failed: KeyError",
    "shape": r"answered torch.float32 \(1, 63\); expected float32 \(1, 64\)",
    "nothing": "answered str; expected float32",
    "nan": "made logits that are NaN or infinite",
    "exits": r"called sys.exit\(3\)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_who_fails_fails_alone_and_by_name(fault: str) -> None:
    batch = Batch(guarded(Shifts()))
    given = logits(4)
    good = [batch.add({"shift": 2.0}, temperature=0.0), batch.add({"shift": -2.0}), batch.add()]
    expected = batch.draw(given[[0, 2, 3]], good)
    bad = batch.add({"shift": 1.0, "fault": fault})
    first, broken, *rest = batch.draw(given, [good[0], bad, *good[1:]])
    assert [first, *rest] == expected
    assert broken.token_id == -1 and broken.error is not None
    assert broken.error.startswith("The logits processor Shifts ")
    assert re.search(FAULTS[fault], broken.error)


def test_one_that_hangs_costs_its_row_and_a_moment() -> None:
    batch = Batch(guarded(Shifts(), limit_s=0.3))
    rows = [batch.add({"shift": 2.0}), batch.add({"shift": 2.0, "fault": "hangs"})]
    sound, stuck = batch.draw(logits(2), rows)
    assert sound.error is None
    assert stuck.error == "The logits processor Shifts hangs: no answer within 0.3 s."
    assert batch.draw(logits(1), rows[:1])[0].error is None, "it is called again for others"


def test_bad_logits_of_the_model_are_told_as_such() -> None:
    batch = Batch(guarded(Shifts()))
    given = logits(1)
    given[0, 3] = torch.nan
    (found,) = batch.draw(given, [batch.add({"shift": 1.0})])
    assert found.error is not None and "The model's logits" in found.error


@pytest.mark.parametrize("wants", ["wants", "update"])
def test_one_that_fails_ahead_of_the_first_row_ends_its_sequence(wants: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Shifts, told: Any) -> bool:
        raise RuntimeError("no memory")

    processors = guarded(Shifts())
    batch = Batch(processors)
    sound = batch.add({"shift": 1.0})
    monkeypatch.setattr(Shifts, wants, fail)
    broken = batch.add({"shift": 1.0})
    monkeypatch.undo()
    first, second = batch.draw(logits(2), [sound, broken])
    assert first.error is None and second.error is not None and "RuntimeError: no memory" in second.error
    processors.end([broken.request.key])


def test_processors_run_in_their_order_and_before_penalties() -> None:
    batch = Batch(guarded(Shifts(), of_vllm(Target)))
    both = batch.add({"shift": 1000.0, "target_token": 9}, temperature=0.0)
    assert batch.draw(logits(1), [both])[0].token_id == 9, "the later one has the last word"
    given = torch.zeros(1, VOCAB)
    given[0, 20] = 1.0
    seen = batch.add({"shift": 10.0}, temperature=0.0, repetition_penalty=1e6, prompt=[7, 6])
    assert batch.draw(given, [seen])[0].token_id == 20, "what a processor raised is penalized"


def test_late_processors_come_behind_the_temperature_and_leave_greedy_requests_alone() -> None:
    late = Late()
    batch = Batch(guarded(late))
    given = logits(40)
    rows = [batch.add({"least": 0.3}, temperature=1.7) for _ in range(40)]
    found = [one.token_id for one in batch.draw(given, rows)]
    plain = [sequence(choice=place, seed=7, temperature=1.7, min_p=0.3) for place in range(40)]
    assert found == [one.token_id for one in draw(Sampler(VOCAB), given, [Row(running) for running in plain])]
    warped = MinPLogitsWarper(0.3)(None, given / 1.7)
    assert all(torch.isfinite(row[token]) for row, token in zip(warped, found, strict=True))
    late.sizes.clear()
    greedy = batch.add({"least": 0.3}, temperature=0.0)
    assert not greedy.state.always_adjusts


def test_a_late_processor_that_changes_nothing_leaves_every_bit() -> None:
    batch = Batch(guarded(Late()))
    given = logits(30)
    some: list[dict[str, Any]] = [
        {"temperature": 0.3},
        {"top_p": 0.8},
        {"temperature": 1e-30},
        {"top_k": 4, "min_p": 0.1},
    ]
    rows = [batch.add({"least": 0.0}, **some[place % 4]) for place in range(30)]
    plain = [sequence(choice=place, seed=7, **some[place % 4]) for place in range(30)]
    expected = draw(Sampler(VOCAB), given, [Row(running) for running in plain])
    assert batch.draw(given, rows) == expected


def test_classes_of_vllm_follow_each_sequence_by_itself() -> None:
    counts = of_vllm(Counts)
    batch = Batch(guarded(counts, of_vllm(ByRequest)))
    first = batch.add({"start": 10}, temperature=0.0)
    second = batch.add({"start": 30, "no_repeats": True}, temperature=0.0, output=[1, 2])
    free = batch.add(temperature=0.0)
    for step in range(4):
        given = logits(3, seed=step)
        found = [one.token_id for one in batch.draw(given, [first, second, free])]
        assert found == [10 + step, 32 + step, int(given[2].argmax())]
        for running, token in zip((first, second, free), found, strict=True):
            running.extend([token])
    assert first.state.in_order and free.state.in_order, "who follows a text has no drafts"
    num_objects = len(counts.uses)
    batch.processors.end([first.request.key, second.request.key, free.request.key])
    assert not counts.uses and len(counts.free) == num_objects
    again = batch.add({"start": 50}, temperature=0.0)
    assert batch.draw(logits(1), [again])[0].token_id == 50
    assert len(counts.uses) + len(counts.free) == num_objects, "objects are used again"


def test_an_object_that_failed_is_not_used_again() -> None:
    counts = of_vllm(Counts)
    batch = Batch(guarded(counts))
    broken = batch.add({"start": "nonsense"}, temperature=0.0)
    sound = batch.add({"start": 3}, temperature=0.0)
    first, second = batch.draw(logits(2), [broken, sound])
    assert first.error is not None and "TypeError" in first.error and second.token_id == 3
    batch.processors.end([broken.request.key, sound.request.key])
    assert len(counts.free) == 1


def test_wrong_parameters_are_told_by_the_processor_that_reads_them() -> None:
    processors = guarded(Shifts(), of_vllm(Target))
    assert processors.check(SamplingParams(extra_args={"shift": 1.0, "target_token": 3})) == ""
    assert processors.check(SamplingParams()) == ""
    said = processors.check(SamplingParams(extra_args={"shift": "far"}))
    assert said == "logits processor Shifts: shift is 'far'; expected a number."
    assert "target_token 'x' is no integer" in processors.check(SamplingParams(extra_args={"target_token": "x"}))


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (":own_processors", "expected module:Class"),
        ("executor.own_processors:Nothing", "executor.own_processors has no 'Nothing'"),
        ("executor.own_processors:NO_CLASS", "that is a int; expected a class"),
        ("executor.own_processors:Refuses", "it cannot be built: RuntimeError: no table of words"),
        ("executor.own_processors.SamplingParams", "it cannot be built: RequestError"),
        ("executor.own_processors:Half", "it lacks is_argmax_invariant, validate_params, wants, update"),
    ],
)
def test_classes_that_are_none_are_told(path: str, sentence: str) -> None:
    config = make_config()
    plugins = msgspec.structs.replace(config.plugins, logits_processors=(path,))
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        load_processors(msgspec.structs.replace(config, plugins=plugins), PluginTable([]))
    assert str(caught.value).startswith(f"--logits-processors {path}: ")


def test_settings_that_are_not_there_are_told() -> None:
    assert CONFIG.model_config.get_vocab_size() == make_config().model.vocab_size
    assert CONFIG.speculative_config is None
    with pytest.raises(AttributeError, match="no setting 'parallel_config' here; there are: cache_config"):
        _ = CONFIG.parallel_config
