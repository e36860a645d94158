"""Planted faults are named and nothing else is, with engines that are functions."""

import random

import pytest

from core_commands.doctor.diagnosis import Doctor, Finding
from core_commands.doctor.trial import Outcome
from tests.doctor.stand_in import GOOD, Machine, suspects

BITS = Outcome(GOOD.tokens, [*GOOD.logprobs[:3], (-0.4 + 1e-7).hex(), *GOOD.logprobs[4:]])
TOKENS = Outcome([1, 2, 9, 4, 5, 6, 7], GOOD.logprobs)
FAILS = Outcome(error="planted")
RESULTS = {"bits": BITS, "tokens": TOKENS, "failure": FAILS}


def names(finding: Finding) -> list[int]:
    return sorted(int(suspect.change.package.module.removeprefix("core_p")) for suspect in finding.suspects)


def planted(what: str, guilty: set[int], number: int, seed: int) -> Machine:
    """A machine on which these changes, in force together, do `what`."""

    def is_there(in_force: frozenset[int]) -> bool:
        return guilty <= in_force

    if what == "time":
        return Machine(number, slow=lambda in_force: 0.2 * is_there(in_force), noise=0.1, seed=seed)
    return Machine(number, lambda in_force: RESULTS[what] if is_there(in_force) else GOOD, noise=0.1, seed=seed)


@pytest.mark.parametrize("what", ["bits", "tokens", "failure", "time"])
def test_planted_faults_are_named(what: str) -> None:
    draw = random.Random(what)
    for seed in range(5):
        number = draw.randrange(1, 20)
        guilty = draw.randrange(number)
        machine = planted(what, {guilty}, number, seed)
        found = Doctor(GOOD, suspects(number), machine).diagnose()
        assert found.what == what
        assert [(finding.what, names(finding)) for finding in found.findings] == [(what, [guilty])]
        assert machine.open == 0  # every engine is ended


def test_the_size_of_a_change_is_told() -> None:
    sentences = {}
    for what in ("bits", "tokens", "failure", "time"):
        [finding] = Doctor(GOOD, suspects(4), planted(what, {2}, 4, 1)).diagnose().findings
        sentences[what] = finding.sentence
    assert "1 of the probe's 7 log-probabilities differ, the first at token 4, by up to 1e-07" in sentences["bits"]
    assert sentences["tokens"] == "token 3 of the probe's 7 is 9, was 3"
    assert sentences["failure"] == "the start fails: planted"
    assert "(interval " in sentences["time"] and "interleaved blocks" in sentences["time"]


def test_two_changes_that_are_good_alone_are_named_together() -> None:
    for what in ("bits", "time"):
        [finding] = Doctor(GOOD, suspects(9), planted(what, {3, 7}, 9, 2)).diagnose().findings
        assert names(finding) == [3, 7]


def test_two_culprits_that_are_bad_alone_are_named_one_by_one() -> None:
    def effect(in_force: frozenset[int]) -> Outcome:
        if 1 in in_force:
            return TOKENS
        return BITS if 6 in in_force else GOOD

    found = Doctor(GOOD, suspects(8), Machine(8, effect)).diagnose()
    assert sorted((finding.what, names(finding)) for finding in found.findings) == [("bits", [6]), ("tokens", [1])]


def test_unchanged_starts_are_never_accused() -> None:
    for seed in range(100):
        machine = Machine(6, noise=0.15, seed=seed)
        found = Doctor(GOOD, suspects(6), machine).diagnose()
        assert found.is_clean and not found.findings


def test_what_no_plugin_did_is_told_without_an_accusation() -> None:
    found = Doctor(GOOD, suspects(5), Machine(5, lambda in_force: BITS)).diagnose(with_pace=False)
    assert found.what == "bits" and not found.findings
    assert "So no plugin did it alone" in found.notes[0]


def test_a_change_that_cannot_be_bypassed_is_named_as_untried() -> None:
    found = Doctor(GOOD, suspects(3, stuck=[1]), Machine(3, lambda in_force: TOKENS)).diagnose(with_pace=False)
    assert not found.findings and "Not tried, since nothing else does their work here: core-p1 1.1" in found.notes[0]
    alone = Doctor(GOOD, suspects(1, stuck=[0]), Machine(1, lambda in_force: TOKENS)).diagnose(with_pace=False)
    assert "core-p0 1.1 (before: 1.0) is the only plugin that changed, and could not be tried" in alone.notes[0]


def test_without_earlier_code_tokens_are_judged_where_bits_never_return_and_pace_is_not() -> None:
    def effect(in_force: frozenset[int]) -> Outcome:
        return TOKENS if 1 in in_force else BITS  # what replaces the plugins rounds otherwise

    found = Doctor(GOOD, suspects(3, inexact=[0, 1, 2]), Machine(3, effect)).diagnose()
    assert [names(finding) for finding in found.findings] == [[1]]
    assert "the tokens are as they were" in found.notes[0]
    assert "Pace is not judged without a copy of the earlier code" in found.notes[1]


def test_chance_in_the_search_is_no_finding() -> None:
    class Fickle(Machine):
        def start(self, bypassed):
            engine = super().start(bypassed)
            engine._factor = 1.3 if self.number == 3 else 1.0  # the first engine whose pace is measured
            return engine

    machine = Fickle(1)
    found = Doctor(GOOD, suspects(1), machine).diagnose()
    assert not found.findings and "slower in the search, not when measured again" in found.notes[0]
