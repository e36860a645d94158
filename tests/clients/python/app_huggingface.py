"""Hugging Face's client, which calls its inference endpoints: `InferenceClient`, with a tool and with a form."""

from __future__ import annotations

import json
from typing import Any

from huggingface_hub import InferenceClient
from task import KEY, MAX_TOKENS, QUESTION, Forecast, Report, arguments, tell

url, model = arguments()
TOOL: Any = {"type": "function", "function": {"name": "forecast", "parameters": Forecast.model_json_schema()}}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": Forecast.model_json_schema()}}
client = InferenceClient(base_url=url, api_key=KEY)
asked: dict[str, Any] = {
    "model": model,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": MAX_TOKENS,
    "temperature": 0,
}
report = Report()
(call,) = client.chat.completions.create(**asked, tools=[TOOL], tool_choice="required").choices[0].message.tool_calls
given = call.function.arguments
report.called["required"] = json.loads(given) if isinstance(given, str) else given
whole = client.chat.completions.create(**asked, response_format=FORM)
report.formed["whole"] = json.loads(whole.choices[0].message.content)
pieces = client.chat.completions.create(**asked, response_format=FORM, stream=True)
report.formed["streamed"] = json.loads(
    "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
)
tell(report)
