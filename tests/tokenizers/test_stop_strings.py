"""Stop strings: found whatever the pieces, never shown in part. Oracle: the text character by character."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_tokens.stop_strings import StopMatcher, StopStrings

TEXT = st.text(alphabet="abc\n", max_size=40)
STOPS = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=5), max_size=6)


def first_complete(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The first moment at which the growing text ends in a stop string; of several the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(text=TEXT, stops=STOPS, include=st.booleans(), cuts=st.lists(st.integers(0, 40), max_size=8))
def test_any_cutting_gives_the_same(text: str, stops: list[str], include: bool, cuts: list[int]) -> None:
    matcher = StopMatcher(StopStrings(stops), include)
    expected, expected_stop = first_complete(text, stops, include)
    shown, met = "", None
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, end in pairwise(borders):
        released, met = matcher.push(text[start:end])
        shown += released
        assert expected.startswith(shown)
        if met:
            break
    if met is None:
        shown += matcher.flush()
    assert (shown, met) == (expected, expected_stop)


def test_only_what_may_become_a_stop_is_held_back() -> None:
    matcher = StopMatcher(StopStrings(["STOP"]))
    assert matcher.push("go S") == ("go ", None)
    assert matcher.push("T") == ("", None)
    assert matcher.push("A") == ("STA", None)
    assert matcher.push("STOP and more") == ("", "STOP")


@pytest.mark.parametrize(("include", "shown"), [(False, "a"), (True, "aEND")])
def test_the_stop_string_is_shown_only_when_asked_for(include: bool, shown: str) -> None:
    assert StopMatcher(StopStrings(["END"]), include).push("aENDb") == (shown, "END")


def test_the_work_a_character_does_not_grow_with_the_number_of_stop_strings() -> None:
    class Counting(StopStrings):
        steps = 0

        def step(self, state: int, character: str) -> int:
            self.steps += 1
            return super().step(state, character)

    for number in (1, 1000):
        stops = Counting([f"stop {index}" for index in range(number)])
        stops.steps = 0
        assert StopMatcher(stops).push("a text without them " * 10)[1] is None
        assert stops.steps == 200
