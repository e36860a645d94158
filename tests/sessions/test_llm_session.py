"""`LLM.session`: chats and completions that keep the sampled tokens, forks and rewinds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.api.errors import RequestError
from core.api.structured_outputs import StructuredOutputsParams

PARAMS = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), dtype="float32", max_model_len=256, max_num_seqs=2) as made:
        yield made


def test_turns_fork_and_rewind(llm: LLM) -> None:
    session = llm.session()
    first = session.generate("Once", PARAMS)
    text = "Once" + first.outputs[0].text + " upon"
    second = session.generate(text, PARAMS, explain=True)
    assert second.explain is not None and second.explain.session is not None
    assert second.explain.session.turns == 1 and second.explain.session.kept_tokens >= len(first.prompt_token_ids)
    assert session.turns == 2
    other = session.fork()
    other.rewind(1)
    assert (session.turns, other.turns) == (2, 1)
    assert other.generate(text, PARAMS).outputs[0].token_ids == second.outputs[0].token_ids
    with pytest.raises(RequestError, match="turn is 9"):
        session.rewind(9)
    with pytest.raises(RequestError, match="n is 2"):
        session.generate("Once", SamplingParams(n=2, temperature=1.0))


def test_a_chat_with_a_grammar_keeps_its_tokens(llm: LLM) -> None:
    session = llm.session()
    form = StructuredOutputsParams(regex="(all|ball){3}")
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=3, structured_outputs=form)
    messages = [{"role": "user", "content": "hi"}]
    first = session.chat(messages, params)
    messages += [{"role": "assistant", "content": first.outputs[0].text}, {"role": "user", "content": "and?"}]
    second = session.chat(messages, params, explain=True)
    sampled = [*first.prompt_token_ids, *first.outputs[0].token_ids]
    assert second.prompt_token_ids[: len(sampled) - 1] == sampled[:-1]
    assert second.explain is not None and second.explain.session is not None and second.explain.session.turns == 1
    with pytest.raises(RequestError, match="one conversation"):
        session.chat([messages, messages], params)
