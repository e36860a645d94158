"""Dify: the class by which its plugins speak to servers with OpenAI's API, as the provider OpenAI-API-compatible has it.

Its tools come with `tool_choice` auto, so a small model is not made to call one here.
"""

from __future__ import annotations

import json
import time
from typing import Any

from dify_plugin.entities.model.message import UserPromptMessage
from dify_plugin.interfaces.model.openai_compatible.llm import OAICompatLargeLanguageModel
from task import KEY, MAX_TOKENS, QUESTION, SCHEMA, Report, arguments, tell

url, model = arguments()
CREDENTIALS = {
    "endpoint_url": url,
    "api_key": KEY,
    "mode": "chat",
    "context_size": "2048",
    "function_calling_type": "tool_call",
    "stream_function_calling": "supported",
}
FORM = json.dumps({"name": "forecast", "schema": SCHEMA})


def ask(stream: bool, **parameters: Any) -> str:
    """Return the text of an answer, as the class gives it to a workflow."""
    client.started_at = time.perf_counter()
    answer = client._generate(
        model=model,
        credentials=CREDENTIALS,
        prompt_messages=[UserPromptMessage(content=QUESTION)],
        model_parameters={"max_tokens": MAX_TOKENS, "temperature": 0, **parameters},
        stream=stream,
    )
    if not stream:
        return answer.message.content
    return "".join(chunk.delta.message.content for chunk in answer)


class Client(OAICompatLargeLanguageModel):
    """Counts words where a stream has no usage: the class itself would download GPT-2's tokens for that."""

    def _get_num_tokens_by_gpt2(self, text: str) -> int:
        return len(text.split())


client = Client(model_schemas=[])
client.validate_credentials(model, CREDENTIALS)
report = Report()
assert ask(False).strip() and ask(True).strip()
for name, stream in (("whole", False), ("streamed", True)):
    report.formed[name] = json.loads(ask(stream, response_format="json_schema", json_schema=FORM))
tell(report)
