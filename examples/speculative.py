"""The same tokens with and without drafts copied from the text so far: `python examples/speculative.py`."""

import time

from core import LLM, SamplingParams

PROMPT = (
    "Repeat this list three times: apples, pears, plums, cherries, grapes.\napples, pears, plums, cherries, grapes.\n"
)

answers = []
for config in (None, {"method": "ngram", "num_speculative_tokens": 5}):
    with LLM(max_model_len=1024, speculative_config=config) as llm:
        begin = time.perf_counter()
        output = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=192, ignore_eos=True), use_tqdm=False)[
            0
        ].outputs[0]
        seconds, stats = time.perf_counter() - begin, llm.stats()
    answers.append(output.token_ids)
    accepted = f"{stats.spec_num_accepted_tokens} of {stats.spec_num_draft_tokens} drafts accepted"
    print(f"{config}: {len(output.token_ids)} tokens in {seconds:.2f} s, {accepted}")
print("equal tokens:", answers[0] == answers[1])
