"""The `given` proposer: known answers are accepted in few steps, and the first token that differs ends the agreement."""

import json

import pytest

from core import LLM, SamplingParams
from core.plugin.hookspecs import LoadContext
from core_runtime.contracts import KnowsRequests, Proposer, ProposerInput, RequestFacts
from core_speculative.given import manifest

PROMPT = {"prompt_token_ids": list(range(3, 23))}


def facts(given, num_prompt_tokens=2):
    return RequestFacts("", None, extra_args={"given_token_ids": given}, num_prompt_tokens=num_prompt_tokens)


def first_drafts(given, sampled, budget=4, choice=0):
    made = manifest.core_load(LoadContext())
    key = ("a", choice)
    made.on_request(key, facts(given))
    made.on_start(key, [1, 2])
    return made.propose(ProposerInput([key], [sampled], [budget]))[0]


def test_drafts_are_the_next_given_tokens():
    made = manifest.core_load(LoadContext())
    assert isinstance(made, Proposer) and isinstance(made, KnowsRequests)
    assert first_drafts([[5, 6, 7, 8, 9, 10]], [5]) == [6, 7, 8, 9]
    assert first_drafts([[5, 6], [7, 8]], [7], choice=1) == [8]
    assert first_drafts([[5, 6]], [5, 6]) == []


def test_after_other_tokens_drafts_go_on_where_the_texts_meet_again():
    assert first_drafts([[5, 6, 7, 8, 9, 10]], [5, 66, 67]) == []
    assert first_drafts([[5, 6, 7, 8, 9, 10]], [5, 66, 7, 8]) == [9, 10]


def test_after_a_preemption_drafts_go_on_behind_the_known_tokens():
    made = manifest.core_load(LoadContext())
    made.on_request(("a", 0), facts([[5, 6, 7, 8]]))
    made.on_start(("a", 0), [1, 2, 5, 6])
    assert made.propose(ProposerInput([("a", 0)], [[7]], [4])) == [[8]]


@pytest.mark.parametrize("given", [None, "text", [["a"]], [[-1]], [7], [[True]], {}])
def test_anything_but_token_ids_gives_no_drafts(given):
    assert first_drafts(given, [5]) == []


WAYS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 7, "top_p": 0.9},
    "penalties and choices": {
        "temperature": 0.8,
        "seed": 3,
        "n": 3,
        "presence_penalty": 1.0,
        "repetition_penalty": 1.2,
        "logit_bias": {5: 2.0},
    },
}


@pytest.fixture(scope="module", params=["attention", "states"])
def llm(request, tiny_llama, tiny_lfm2):
    model = tiny_llama if request.param == "attention" else tiny_lfm2
    speculation = {"method": "given", "num_speculative_tokens": 12, "adaptive": False}
    with LLM(model=str(model), max_model_len=256, max_num_seqs=4, speculative_config=speculation) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_a_given_answer_is_accepted_whole_and_a_changed_one_changes_nothing(llm, way):
    def run(given=None):
        extra = None if given is None else {"given_token_ids": given}
        params = SamplingParams(max_tokens=40, ignore_eos=True, extra_args=extra, **WAYS[way])
        [output] = llm.generate(PROMPT, params, use_tqdm=False)
        return [list(choice.token_ids) for choice in output.outputs]

    answers = run()
    before = llm.stats()
    assert run(answers) == answers
    after = llm.stats()
    num_accepted = after.spec_num_accepted_tokens - before.spec_num_accepted_tokens
    num_drafts = after.spec_num_draft_tokens - before.spec_num_draft_tokens
    assert num_accepted == num_drafts >= 30 * len(answers)
    changed = json.loads(json.dumps(answers))
    changed[0][9] = (changed[0][9] + 1) % 20
    assert run(changed) == answers
