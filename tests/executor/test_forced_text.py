"""How forced text is divided into tokens: a guess, until the model has shown how it does it."""

import pytest

from core_runtime.executor.constraints import forced_text
from core_runtime.executor.constraints.forced_text import ForcedTexts

TOKENS = ["a", "ab", "b", "bc", "c", "cd", "abc"]


def texts() -> ForcedTexts:
    """The tokenizer takes single letters."""
    return ForcedTexts(lambda text: [TOKENS.index(letter) for letter in text], lambda token: TOKENS[token].encode())


def ids(*spelled: str) -> list[int]:
    return [TOKENS.index(text) for text in spelled]


def test_a_new_text_is_divided_by_the_tokenizer_but_for_its_last_token() -> None:
    assert texts().divided("abc") == ids("a", "b")


@pytest.mark.parametrize(
    ("output", "spelled"),
    [(("ab", "c"), ("ab", "c")), (("a", "bc", "a"), ("a", "bc")), (("ab", "cd"), ("ab",)), (("abc",), ("abc",))],
)
def test_the_next_time_it_is_divided_as_the_model_did(output: tuple[str, ...], spelled: tuple[str, ...]) -> None:
    known = texts()
    known.divided("abc")
    found = known.spelled("abc", ids(*output))
    assert found == ids(*spelled)
    known.learn("abc", found)
    assert known.divided("abc") == ids(*spelled)


def test_nothing_is_learned_of_a_text_that_has_not_been_written_yet() -> None:
    assert texts().spelled("abc", ids("ab")) is None


def test_as_many_texts_are_kept_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced_text, "MOST_TEXTS", 2)
    known = texts()
    for text in ("abc", "bc", "cb"):
        known.learn(text, [])
    assert known.divided("bc") == []
    assert known.divided("abc") == ids("a", "b")
