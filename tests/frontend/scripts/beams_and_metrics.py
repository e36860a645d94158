"""Beam search, token prompts, the tokenizer, and metrics of the prefix cache."""

import sys

from vllm import LLM, SamplingParams, TokensPrompt
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.sampling_params import BeamSearchParams
from vllm.v1.metrics.reader import Counter, Gauge, Histogram, Vector


def main():
    llm = LLM(model=sys.argv[2], max_model_len=128, kv_cache_memory_bytes="8M", disable_log_stats=False, seed=0)
    tokenizer = llm.get_tokenizer()
    messages = [{"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    prompt = TokensPrompt(prompt_token_ids=ids, multi_modal_data=None)
    outputs = llm.beam_search([prompt], BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True))
    print([len(sequence.tokens) - len(ids) for sequence in outputs[0].sequences])
    shared = "A long beginning that all prompts share. " * 2
    for _ in range(2):
        llm.generate([shared + "one", shared + "two"], SamplingParams(temperature=0.0, max_tokens=2), use_tqdm=False)
    for metric in llm.get_metrics():
        assert isinstance(metric, Counter | Gauge | Histogram | Vector)
        if metric.name == "vllm:prefix_cache_hits":
            print(metric.value > 0)
    llm.reset_prefix_cache()
    del llm
    cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main()
