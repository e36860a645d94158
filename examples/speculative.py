"""The same tokens with four kinds of drafts as without, at temperature 1: `python examples/speculative.py [DRAFT]`.

DRAFT is a draft that `examples/train_draft.py` has made for the embedded model.
"""

import sys
import time

from core import LLM, SamplingParams
from core_config.locating.default_model import default_model

LIST = "apples, pears, plums, cherries, grapes, quinces, figs, dates"
PROMPT = f"Repeat this list again and again:\n{LIST}\n{LIST}\n{LIST}\n"
PARAMS = SamplingParams(temperature=1.0, seed=7, max_tokens=192, ignore_eos=True)

KINDS = {
    "none": None,
    "ngram: what followed the same words before": {"method": "ngram", "num_speculative_tokens": 6},
    "suffix: the same, in earlier answers too": {"method": "suffix"},
    "draft_model: a model as large as its target": {
        "method": "draft_model",
        "model": str(default_model()),
        "num_speculative_tokens": 3,
    },
}
if len(sys.argv) > 1:
    KINDS["eagle3: a draft trained for this model"] = {
        "method": "eagle3",
        "model": sys.argv[1],
        "num_speculative_tokens": 2,
    }

answers = []
for name, config in KINDS.items():
    with LLM(max_model_len=1024, speculative_config=config) as llm:
        begin = time.perf_counter()
        (output,) = llm.generate(PROMPT, PARAMS, use_tqdm=False)
        seconds = time.perf_counter() - begin
        stats = llm.stats()
    answers.append(output.outputs[0].token_ids)
    print(f"{name}\n  {len(answers[-1])} tokens in {seconds:.2f} s", end="")
    print(f", {stats.spec_num_accepted_tokens} of {stats.spec_num_draft_tokens} drafts accepted")
print("equal tokens:", all(answer == answers[0] for answer in answers))
