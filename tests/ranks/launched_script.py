"""The script that all ranks of test_launched.py run: `torchrun --nproc-per-node 2 launched_script.py MODEL ADAPTER FOLDER`.

Writes what this rank has got to FOLDER/rank-N.json.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from core import LLM, SamplingParams
from core.api.errors import RequestError
from core.api.structured_outputs import StructuredOutputsParams
from core_frontend.library.lora_request import LoRARequest

PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9], [3 + place % 11 for place in range(90)]]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3, prompt_logprobs=1)
DRAWN = SamplingParams(temperature=0.9, max_tokens=24, n=2)
"""Without a seed: each process would draw other noise."""
DIGITS = SamplingParams(
    temperature=0.7, seed=2, max_tokens=12, structured_outputs=StructuredOutputsParams(regex="[0-9]{3}-[a-c]{4}")
)
WHOLE = {"max_model_len": 256, "kv_cache_memory_bytes": "8M", "use_tqdm_on_load": False}


def answers(llm: LLM, params: SamplingParams, adapter: LoRARequest | None = None) -> list[Any]:
    """Tokens, texts and log-probabilities of every prompt."""
    found: list[Any] = []
    for output in llm.generate(PROMPTS, params, use_tqdm=False, lora_request=adapter):
        for choice in output.outputs:
            rows = [*(output.prompt_logprobs or []), *(choice.logprobs or [])]
            logprobs = [sorted([token, each.logprob] for token, each in (row or {}).items()) for row in rows]
            found.append([list(choice.token_ids), choice.text, choice.finish_reason, logprobs])
    return found


def main() -> None:
    model, adapter, folder = sys.argv[1:]
    launched = {"tensor_parallel_size": 2, "distributed_executor_backend": "external_launcher"}
    llm = LLM(model, **launched, **WHOLE, enable_sleep_mode=True, engine_connect_timeout=120, enable_lora=True)
    found: dict[str, Any] = {
        "greedy": answers(llm, GREEDY),
        "drawn": answers(llm, DRAWN),
        "digits": answers(llm, DIGITS),
    }
    stop = found["greedy"][0][1][4:6]
    found["stopped"] = answers(llm, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop=[stop]))
    try:
        llm.generate([[1] * 300], GREEDY, use_tqdm=False)
    except RequestError as error:
        found["refused"] = str(error)
    name = LoRARequest("a", 1, adapter)
    found["adapted"] = answers(llm, GREEDY, name)
    llm.sleep(2)
    llm.wake_up()
    found["awake"] = answers(llm, GREEDY)
    found["adapted and awake"] = answers(llm, GREEDY, name)
    engine = llm.llm_engine
    engine.add_request("one", PROMPTS[0], GREEDY)
    steps = []
    while engine.has_unfinished_requests():
        steps += [len(output.outputs[0].token_ids) for output in engine.step()]
    found["steps"] = steps
    if dist.get_rank() == 0:  # rank 0 alone may ask for statistics
        assert llm.get_metrics()
    found["rank"] = dist.get_rank()
    found["cached"] = engine.stats().prefix_hits
    (Path(folder) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
