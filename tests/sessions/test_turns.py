"""The tokens of a session: which prompts go on from sampled tokens, and which do not."""

from pathlib import Path

from core_frontend.sessions.turns import CONTROL, FIRST, OTHER, Joined, Reading, Turn, joined, next_turn
from core_tokens.tokenizer import Tokenizer
from tests.sessions.merging import letters, merging_tokenizer
from tests.tokenizers.plugged_tokenizer import opened

TOKENIZER = merging_tokenizer()
PROMPT = "<|im_start|>user\nall</s>\n<|im_start|>assistant\n"


def read(text: str, most: int = 1000, control: bool = False, special: bool = False) -> Reading:
    return Reading(text, TOKENIZER.encode(text, add_special_tokens=False), special, most, control)


def join(turns: list[Turn], prompt: Reading, tokenizer: Tokenizer = TOKENIZER) -> Joined:
    return joined("s", turns, prompt, tokenizer)


def after(turns: list[Turn], text: str, answer: str, end: bool = True) -> Turn:
    """The turn of a prompt whose answer was sampled letter by letter."""
    return next_turn(join(turns, read(text)), text, False, letters(TOKENIZER, answer) + [1] * end)


def test_sampled_tokens_stay_where_the_text_is_equal() -> None:
    first = after([], PROMPT, "roll")
    text = f"{PROMPT}roll</s>\n<|im_start|>user\nball"
    found = join([first], read(text))
    assert found.ids != read(text).ids
    assert found.ids[: first.num_tokens] == first.ids()
    assert TOKENIZER.decode(found.ids, skip_special_tokens=False) == text
    assert (found.use.turns, found.use.kept_tokens, found.use.note) == (1, first.num_tokens, None)
    second = next_turn(found, text, False, letters(TOKENIZER, "hall"))
    assert second.ids() == [*found.ids, *letters(TOKENIZER, "hall")]
    assert len(second.own) < second.num_tokens - first.num_tokens + 1, "what is shared is kept once"
    third = join([first, second], read(f"{text}hall</s>\n"))
    assert third.kept == second.num_tokens


def test_an_end_that_was_cut_and_a_place_within_a_token() -> None:
    turn = after([], PROMPT, "roll\n\n")
    cut = join([turn], read(f"{PROMPT}roll</s>\n"))
    assert cut.ids == [*turn.ids()[: turn.num_tokens - 3], 1, *TOKENIZER.encode("\n", add_special_tokens=False)]
    inside = after([], PROMPT, "rol", end=False)
    goes_on = join([inside], read(f"{PROMPT}roll"))  # "l" and "l" meet in one token
    assert goes_on.ids == read(f"{PROMPT}roll").ids and goes_on.kept == inside.num_prompt


def test_an_answer_that_changed_goes_on_from_what_is_equal() -> None:
    first = after([], PROMPT, "roll")
    second = after([first], f"{PROMPT}roll</s>\nall", "hall")
    found = join([first, second], read(f"{PROMPT}roll</s>\nballs"))
    assert found.turn is first and found.kept == first.num_tokens
    edited = join([first, second], read(f"{PROMPT}rill</s>\nall"))
    assert TOKENIZER.decode(edited.ids, skip_special_tokens=False) == f"{PROMPT}rill</s>\nall"
    assert edited.kept == first.num_prompt + 1


def test_what_is_not_joined_says_why() -> None:
    turn = after([], PROMPT, "roll")
    text = f"{PROMPT}roll</s>\n"
    fresh = read(text).ids
    for note, turns, prompt in (
        (FIRST, [], read(text)),
        (OTHER, [turn], read("<|im_start|>system\nother")),
        (OTHER, [turn], read(text, special=True)),
        (CONTROL, [turn], read(text, control=True)),
    ):
        found = join(turns, prompt)
        assert (found.ids, found.kept, found.use.note) == (prompt.ids, 0, note)
    tight = join([turn], read(text, most=len(fresh)))
    assert (tight.ids, tight.kept) == (fresh, turn.num_prompt), "the answer's letters have no room"


def test_characters_of_several_tokens() -> None:
    turn = after([], PROMPT, "wörld 🙂 roll")
    text = f"{PROMPT}wörld 🙂 roll</s>\nall"
    assert join([turn], read(text)).kept == turn.num_tokens
    half = after([], PROMPT, "wör", end=False)
    object.__setattr__(half, "own", half.own[:-2])  # ends within "ö"
    assert TOKENIZER.decode(join([half], read(text)).ids, skip_special_tokens=False) == text


def test_a_tokenizer_that_is_a_plugin_is_not_asked_again(tmp_path: Path) -> None:
    """It would sleep if it were, in a thread that nothing ends."""
    tokenizer = opened(tmp_path)
    hello, hell = tokenizer.encode("hello")[0], tokenizer.encode("hell")[0]
    first = joined("s", [], Reading("hello ", [hello, 32], False, 1000), tokenizer)
    turn = next_turn(first, "hello ", False, [hell, *b"o"])
    found = joined("s", [turn], Reading("hello hello HANG", [hello, 32, hello, *b" HANG"], False, 1000), tokenizer)
    assert (found.ids, found.kept) == ([hello, 32, hell, *b"o HANG"], 4)
    within = joined(
        "s",
        [next_turn(first, "hello ", False, [*b"hel"])],
        Reading("hello hello", [hello, 32, hello], False, 1000),
        tokenizer,
    )
    assert (within.ids, within.kept) == ([hello, 32, hello], 2), "no token begins where the sampled ones end"
