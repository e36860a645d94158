"""OpenVINO GenAI's continuous batching as a worker. Options: model (a converted directory), cache_gib, max_num_seqs."""

from __future__ import annotations

import time

from worker_loop import Options, serve


class Engine:
    def __init__(self, options: Options) -> None:
        import numpy
        import openvino
        import openvino_genai

        self.imported = time.perf_counter()
        self.version = openvino_genai.__version__
        self._numpy, self._openvino, self._genai = numpy, openvino, openvino_genai
        limits = openvino_genai.SchedulerConfig()
        limits.cache_size = options["cache_gib"]
        limits.max_num_seqs = options["max_num_seqs"]
        limits.enable_prefix_caching = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(options["model"], limits, "CPU", {})

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        wanted = self._genai.GenerationConfig()
        wanted.max_new_tokens = wanted.min_new_tokens = max_tokens
        wanted.ignore_eos, wanted.do_sample = True, False
        inputs = [self._openvino.Tensor(self._numpy.array([ids], dtype=self._numpy.int64)) for ids in prompts]
        results = self._pipeline.generate(inputs, [wanted] * len(inputs))
        return [list(map(int, result.m_generation_ids[0])) for result in results]


if __name__ == "__main__":
    serve(Engine)
