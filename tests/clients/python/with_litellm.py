"""litellm: `completion`, with a tool that must be called and with a form, of OpenAI's and of Anthropic's API."""

from __future__ import annotations

import json
from typing import Any

import litellm
from task import KEY, MAX_TOKENS, QUESTION, Forecast, Report, arguments, tell

TOOL = {"type": "function", "function": {"name": "forecast", "parameters": Forecast.model_json_schema()}}
NAMED = {"type": "function", "function": {"name": "forecast"}}


def ask(api: str, stream: bool, **fields: Any) -> Any:
    url, model = arguments()
    # Anthropic's paths begin at the root.
    base = url if api == "openai" else url.removesuffix("/v1")
    messages = [{"role": "user", "content": QUESTION}]
    answer = litellm.completion(
        model=f"{api}/{model}",
        api_base=base,
        api_key=KEY,
        messages=messages,
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=stream,
        **fields,
    )
    whole = litellm.stream_chunk_builder(list(answer), messages=messages) if stream else answer
    return whole.choices[0].message


def called(message: Any) -> Any:
    (call,) = message.tool_calls
    assert call.function.name == "forecast" and call.id
    return json.loads(call.function.arguments)


report = Report()
for name, stream in (("whole", False), ("streamed", True)):
    for api in ("openai", "anthropic"):
        required = ask(api, stream, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
        report.called[f"{api}, required, {name}"] = called(required)
        report.called[f"{api}, named, {name}"] = called(ask(api, stream, tools=[TOOL], tool_choice=NAMED))
        report.formed[f"{api}, {name}"] = json.loads(ask(api, stream, response_format=Forecast).content)
tell(report)
