"""Trees of drafts as vLLM writes them."""

import pytest

from core.api.errors import UserError
from core_config.speculation.token_tree import token_tree


def test_paths_become_parents() -> None:
    assert token_tree("[(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]", 5) == (-1, -1, 0, 0, 2)
    assert token_tree("[(0, 1), (0, 0), [1], [0]]", 4) == (-1, -1, 0, 0)
    assert token_tree("[(0,), (0, 0), (0, 0, 0)]", 3) == ()
    assert token_tree(None, 3) == ()


@pytest.mark.parametrize(
    ("text", "count", "words"),
    [
        ("[(0,), (1,)]", 3, "2 drafts; num_speculative_tokens says 3"),
        ("[(0,), (2,)]", 2, "(2,) is there, but (1,) is not"),
        ("[(0,), (1,), (1, 0)]", 3, "(1, 0) is there, but (0, 0) is not"),
        ("[(0,), (0, 0, 0)]", 2, "(0, 0, 0) is there, but (0, 0) is not"),
        ("[(0,), (0,)]", 2, "expected paths such as"),
        ("[(0.5,)]", 1, "expected paths such as"),
        ("[()]", 1, "expected paths such as"),
        ("__import__('os')", 1, "expected paths such as"),
        ("(" * 9000, 1, "expected paths such as"),
        ("[(0,)]" * 9000, 1, "expected paths such as"),
    ],
)
def test_other_shapes_are_refused_in_a_sentence(text: str, count: int, words: str) -> None:
    with pytest.raises(UserError) as caught:
        token_tree(text, count)
    assert words in str(caught.value)
