"""Hugging Face's client, which calls its inference endpoints: `InferenceClient`, with a tool and with a form."""

from __future__ import annotations

import json
from typing import Any

from huggingface_hub import InferenceClient
from task import KEY, MAX_TOKENS, QUESTION, SCHEMA, Report, arguments, tell

url, model = arguments()
TOOL: Any = {"type": "function", "function": {"name": "forecast", "parameters": SCHEMA}}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": SCHEMA}}
client = InferenceClient(base_url=url, api_key=KEY)
asked: dict[str, Any] = {
    "model": model,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": MAX_TOKENS,
    "temperature": 0,
}
report = Report()
one: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "extra_body": {"parallel_tool_calls": False}}
(call,) = client.chat.completions.create(**asked, **one).choices[0].message.tool_calls
given = call.function.arguments
report.called["required"] = json.loads(given) if isinstance(given, str) else given
whole = client.chat.completions.create(**asked, response_format=FORM)
report.formed["whole"] = json.loads(whole.choices[0].message.content)
pieces = client.chat.completions.create(**asked, response_format=FORM, stream=True)
report.formed["streamed"] = json.loads(
    "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
)
tell(report)
