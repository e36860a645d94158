"""vLLM's paths for servers that split tokens from texts: requests rendered to token ids, token ids answered with token ids,
and those read back as answers.
"""
