"""States are kept where the last question begins, from which templates rewrite."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core_tokens.chat.question_edge import question_edges
from tests.sessions.merging import merging_tokenizer

PARAMS = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
TEMPLATE = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] if loop.index0 >= ns.last else "
    "m['content'].split('|')[-1] }}{% endfor %}[assistant]"
)
"""Shows thoughts, which stand before a bar, after the last question alone."""


@pytest.fixture(scope="module")
def llm(tiny_lfm2: Path) -> Iterator[LLM]:
    with LLM(str(tiny_lfm2), dtype="float32", max_model_len=512, max_num_seqs=2) as made:
        yield made


def cached(llm: LLM, prompt: list[int], edges: list[int]) -> int:
    (output,) = llm.generate({"prompt_token_ids": prompt, "edges": edges}, PARAMS, use_tqdm=False)
    return output.num_cached_tokens or 0


@pytest.mark.parametrize("edge", [40, 100, 112, 250])
def test_a_prompt_that_leaves_another_at_an_edge_finds_its_state(llm: LLM, edge: int) -> None:
    prompt = [(11 * place + edge) % 90 + 5 for place in range(260)]
    other = [*prompt[: edge + 1], *([7] * 30)]
    assert cached(llm, prompt, [edge]) == 0
    assert cached(llm, other, []) == edge // 16 * 16
    assert llm.reset_prefix_cache()
    cached(llm, prompt, [])
    assert cached(llm, other, []) == 0
    with_edge = llm.generate({"prompt_token_ids": prompt, "edges": [edge]}, PARAMS, use_tqdm=False)
    assert llm.reset_prefix_cache()
    without = llm.generate({"prompt_token_ids": prompt}, PARAMS, use_tqdm=False)
    assert with_edge[0].outputs[0].token_ids == without[0].outputs[0].token_ids


def test_edges_beyond_the_prompt_are_harmless(llm: LLM) -> None:
    prompt = [(5 * place) % 90 + 5 for place in range(100)]
    cached(llm, prompt, [0, 99, 100, 5000])
    assert cached(llm, [*prompt, 9], []) == 96


def test_a_loop_of_tools_goes_on_from_its_question_once_the_next_one_comes(llm: LLM) -> None:
    before = "Use the tools that you have, one after the other. " * 3
    messages = [{"role": "system", "content": before}, {"role": "user", "content": "What is in the file?"}]
    for number in range(6):
        messages += [{"role": "assistant", "content": f"hm {number}|read"}, {"role": "tool", "content": "a line of it"}]
    assert llm.reset_prefix_cache(), "the loop is computed at once, as after a restart"
    llm.chat(messages, PARAMS, chat_template=TEMPLATE, use_tqdm=False)
    messages += [{"role": "assistant", "content": "well|done"}, {"role": "user", "content": "Go on."}]
    (output,) = llm.chat(messages, PARAMS, chat_template=TEMPLATE, use_tqdm=False)
    num_before = len(llm.get_tokenizer().encode(f"[system]{before}[user]", add_special_tokens=False))
    assert num_before > 16
    assert output.num_cached_tokens == num_before // 16 * 16


def test_where_a_question_begins() -> None:
    tokenizer = merging_tokenizer()
    messages = [
        {"role": "user", "content": "ok"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": [{"type": "text", "text": " all ok? "}]},
        {"role": "assistant", "content": "ok"},
        {"role": "tool", "content": "ok"},
    ]
    text = "<u>ok<a>ok<u>all ok?<a>ok<t>ok<a>"
    start = text.index("all")
    ids = tokenizer.encode(text, add_special_tokens=False)
    (edge,) = question_edges(text, ids, messages, tokenizer)
    assert tokenizer.decode(ids[:edge]) == text[:start]
    (early,) = question_edges(text, ids, messages[:1], tokenizer)
    assert tokenizer.decode(ids[:early]) == text[: text.rindex("ok")]
    for none in ([], [{"role": "system", "content": "x"}], [{"role": "user", "content": "unseen"}]):
        assert question_edges(text, ids, none, tokenizer) == []
