"""Where greedy decoding first differs from llama.cpp on the same GGUF file: `python -m benchmarks.divergence [FILE]`.

Needs `llama-cpp-python` in this environment or in the one named with --python. Prints, for each prompt, the number of equal
tokens and both continuations from there. Both engines round inputs to 8 bits in their own way, so late differences are
expected; `--dtype float32` shows ours without that rounding.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from rich.console import Console
from rich.table import Table

PROMPTS = (
    "The capital of Italy is the city of",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n",
    "The three most important inventions of the last century are",
    "Water boils at a temperature of",
)
PEER = """
import json, sys
from llama_cpp import Llama
path, count, prompts = json.loads(sys.argv[1])
model = Llama(path, n_ctx=1024, n_threads=2, verbose=False, seed=0)
answers = []
for prompt in prompts:
    model.reset()
    ids, out = list(prompt), []
    for token in model.generate(ids, temp=0.0, repeat_penalty=1.0):
        out.append(int(token))
        if len(out) == count:
            break
    answers.append(out)
print("ANSWER" + json.dumps(answers))
"""


def peer_tokens(python: str, path: str, count: int, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of llama.cpp for prompts given as token ids."""
    arguments = json.dumps([path, count, prompts])
    done = subprocess.run([python, "-c", PEER, arguments], capture_output=True, text=True, timeout=600, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("ANSWER")), None)
    if line is None:
        sys.exit(f"llama-cpp-python did not answer in {python}; install it there.\n{done.stderr[-500:]}")
    return json.loads(line.removeprefix("ANSWER"))


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a GGUF file; the embedded default when left out")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has llama-cpp-python")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", default="auto")
    given = parser.parse_args()

    from core import LLM, SamplingParams

    llm = LLM(model=given.model, dtype=given.dtype, max_model_len=1024, use_tqdm_on_load=False)
    params = SamplingParams(temperature=0, max_tokens=given.tokens, ignore_eos=True)
    outputs = llm.generate(list(PROMPTS), params, use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    path = llm.model_path
    llm.close()
    theirs = peer_tokens(given.python, path, given.tokens, [output.prompt_token_ids for output in outputs])
    table = Table("prompt", "equal tokens", "core goes on", "llama.cpp goes on", title=f"{path}, dtype {given.dtype}")
    for output, other in zip(outputs, theirs, strict=True):
        ours = output.outputs[0].token_ids
        same = next((i for i, (a, b) in enumerate(zip(ours, other, strict=False)) if a != b), given.tokens)
        tails = [repr(tokenizer.decode(ids[same : same + 6])) for ids in (ours, other)]
        table.add_row(repr(output.prompt), f"{same} of {given.tokens}", *tails)
    Console().print(table)


if __name__ == "__main__":
    main()
