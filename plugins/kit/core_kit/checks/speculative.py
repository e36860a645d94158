"""Checks of proposers: budgets, independence, repetition, forgetting.

Owns: the checks. Never does: judge how good drafts are. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import random
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from core.api.errors import UserError
from core.args.plugin_arguments import convert_struct
from core.plugin.hookspecs import DraftContext
from core.plugin.table import load_plugin
from core_config.speculation.draft import draft_shape
from core_kit.case import Failure, Skipped, Subject
from core_runtime.contracts import ProposerInput
from core_runtime.models.families import decoder_spec

VOCABULARY = 64
SMALL = 1 << 16
"""Bytes below which memory needs no plan."""
Key = tuple[str, int]


def keeps_its_budget(subject: Subject) -> None:
    """Drafts are lists of token ids, one a sequence, never longer than the budget; a budget of 0 gives none."""
    known = decoder_spec(subject.sample.manifest.config).vocab_size
    keys = [(f"request-{n}", 0) for n in range(3)]
    for budget in (0, 1, 3, 8):
        proposer = _fresh(subject)
        for key in keys:
            proposer.on_start(key, _text(str(key), 30))
        budgets = [budget, 0, budget]
        for step in range(6):
            deltas = [_text(f"{key}{step}", 1 + step % 3) for key in keys]
            drafts = proposer.propose(ProposerInput(keys, deltas, budgets))
            if len(drafts) != len(keys):
                raise Failure(f"propose answered {len(drafts)} lists for {len(keys)} sequences")
            for mine, limit in zip(drafts, budgets, strict=True):
                _check_drafts(mine, limit, known)


def _check_drafts(drafts: list[Any], budget: int, vocab_size: int) -> None:
    if len(drafts) > budget:
        raise Failure(f"propose answered {len(drafts)} drafts, the budget was {budget}")
    for token in drafts:
        if not (isinstance(token, int) and 0 <= token < vocab_size):
            raise Failure(f"propose answered {drafts!r}, expected token ids of the vocabulary, 0 to {vocab_size - 1}")


def repeats_itself(subject: Subject) -> None:
    """The same history gives the same drafts again."""
    first = _drafts(_fresh(subject), ("a", 0))
    second = _drafts(_fresh(subject), ("a", 0))
    if first != second:
        raise Failure("the same sequence got other drafts the second time; results would depend on the run")


def ignores_neighbours(subject: Subject) -> None:
    """A sequence's drafts do not depend on the sequences beside it, unless the plugin declares that it `learns`."""
    if _learns(subject):
        return
    alone = _drafts(_fresh(subject), ("a", 0))
    company = _drafts(_fresh(subject), ("a", 0), neighbours=[("b", 0), ("a", 1)])
    if alone != company:
        raise Failure(f"alone a sequence got {alone}, in company {company}")


def starts_anew(subject: Subject) -> None:
    """A sequence that was preempted starts again with all it knew; a finished key can be used again."""
    proposer = _fresh(subject)
    expected = _drafts(proposer, ("a", 0))
    proposer.on_start(("a", 0), _text("something else", 12))
    again = _drafts(proposer, ("a", 0))
    if again != expected and not _learns(subject):
        raise Failure("on_start after a preemption does not start the sequence anew")
    proposer.on_finished(("a", 0))
    again = _drafts(proposer, ("a", 0))
    if again != expected and not _learns(subject):
        raise Failure("a key that was used before gets other drafts; forget a sequence in on_finished")


def takes_what_comes(subject: Subject) -> None:
    """Short prompts, unknown keys in on_finished and empty batches are no errors."""
    proposer = _fresh(subject)
    proposer.on_finished(("never", 0))
    proposer.on_start(("short", 0), [1])
    proposer.propose(ProposerInput([("short", 0)], [[2]], [4]))
    if proposer.propose(ProposerInput([], [], [])) != []:
        raise Failure("propose answered drafts for a batch without sequences")


def tells_its_weights(subject: Subject) -> None:
    """The memory plan counts its own weights: core_weights_nbytes tells the bytes that the loaded object holds."""
    struct = subject.manifest.spec.arguments
    values, problems = convert_struct(struct, dict(subject.arguments), "arguments")
    if problems:
        raise Failure(" ".join(problems))
    facts = subject.sample.manifest.facts()
    told = subject.manifest.call("core_weights_nbytes", arguments=values, facts=facts)
    held = held_bytes(_fresh(subject))
    if told is None and held > SMALL:
        raise Failure(
            f"it holds {held} bytes of weights that no memory plan counts; tell them with core_weights_nbytes"
        )
    if told is None:
        return
    allowed = max(SMALL // 16, told // 100)
    if abs(told - held) > allowed:
        raise Failure(f"core_weights_nbytes tells {told} bytes, the loaded object holds {held}")


def describes_its_draft(subject: Subject) -> None:
    """core_draft_spec describes a draft for the kit's model, and the same one again."""
    if not subject.manifest.implements("core_draft_spec"):
        raise Skipped("it guesses by itself: core_load builds a Proposer")
    values, problems = convert_struct(subject.manifest.spec.arguments, dict(subject.arguments), "arguments")
    if problems:
        raise Failure(" ".join(problems))
    manifest = subject.sample.manifest
    target = decoder_spec(manifest.config)
    context = DraftContext(
        target=target,
        hf_config=manifest.config,
        arguments=values,
        decoder=target,
        tensors=list(manifest.tensors),
    )
    try:
        first = draft_shape(subject.manifest, context)
        second = draft_shape(subject.manifest, context)
    except UserError as refusal:
        raise Skipped(f"it refuses the kit's plain checkpoint ({refusal}); give one of its own with --model") from None
    if first != second:
        raise Failure("core_draft_spec described the same checkpoint in two ways")
    if first is not None and first.decoder is None and not subject.manifest.implements("core_load"):
        raise Failure("core_draft_spec has no decoder, so core_load must build DraftHeads; the manifest has none")


def held_bytes(thing: Any) -> int:
    """Return the bytes of all tensors and arrays reachable from an object, each once. The model's own (`options`) are
    not passed.
    """
    found: dict[int, int] = {}
    seen: set[int] = set()
    pending = [thing]
    while pending:
        part = pending.pop()
        if id(part) in seen or isinstance(part, (type, ModuleType, FunctionType, str, bytes, int, float)):
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            storage = part.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(part, np.ndarray):
            found[part.ctypes.data] = part.nbytes
        elif isinstance(part, dict):
            pending += [*part.keys(), *part.values()]
        elif isinstance(part, (list, tuple, set, frozenset)):
            pending += part
        else:
            pending += _attributes(part)
    return sum(found.values())


def _attributes(thing: Any) -> list[Any]:
    """Return everything an object refers to: its `__dict__`, its slots, and a method's object."""
    held: list[Any] = []
    if isinstance(thing, MethodType):
        held.append(thing.__self__)
    held.append(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        for name in getattr(kind, "__slots__", ()):
            held.append(getattr(thing, name, None))
    return held


CHECKS = (
    keeps_its_budget,
    repeats_itself,
    ignores_neighbours,
    starts_anew,
    takes_what_comes,
    tells_its_weights,
    describes_its_draft,
)


def _learns(subject: Subject) -> bool:
    """Whether drafts may come from earlier requests."""
    return bool(subject.manifest.spec.capabilities.get("learns", False))


def _fresh(subject: Subject) -> Any:
    assert subject.loaded is not None
    return load_plugin(subject.manifest, subject.context())


def _text(seed: str, length: int) -> list[int]:
    """Return tokens with repetitions, the same in every run."""
    source = random.Random(seed)
    phrase = [source.randrange(4, VOCABULARY) for _ in range(5)]
    tokens = []
    for i in range(length):
        repeated = source.random() < 0.8
        tokens.append(phrase[i % 5] if repeated else source.randrange(4, VOCABULARY))
    return tokens


def _drafts(proposer: Any, key: Key, neighbours: list[Key] | None = None) -> list[list[int]]:
    """Return four steps of drafts for one sequence, while others start and finish."""
    others = list(neighbours or ())
    for each in [*others, key]:
        request_id, _ = each
        proposer.on_start(each, _text(request_id, 40))
    found = []
    for step in range(4):
        if step == 2 and others:
            proposer.on_finished(others.pop())
        keys = [*others, key]
        deltas = [_text(f"{request_id} {step}", 2) for request_id, _ in keys]
        budgets = [4] * len(keys)
        drafts = proposer.propose(ProposerInput(keys, deltas, budgets))
        found.append(list(drafts[-1]))
    return found
