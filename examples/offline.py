"""Complete some prompts in this process: `python examples/offline.py`. Written as for vLLM; only the import line differs."""

from core import LLM, SamplingParams

PROMPTS = ["Hello, my name is", "The capital city of Japan is", "The future of machine learning is"]

llm = LLM(max_model_len=2048)
params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=32, seed=7)
for output in llm.generate(PROMPTS, params):
    print(f"{output.prompt!r} → {output.outputs[0].text!r}")
