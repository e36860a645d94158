"""Haystack: `OpenAIChatGenerator` in a pipeline, with a tool that must be called and with a form."""

from __future__ import annotations

import json
from typing import Any

from haystack import Pipeline
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from task import KEY, MAX_TOKENS, QUESTION, SCHEMA, Report, arguments, tell

url, model = arguments()
TOOL = Tool("forecast", "The weather of some days.", SCHEMA, function=lambda **_: "sun")
FORM = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": SCHEMA}}


def ask(stream: bool, tools: list[Tool] | None = None, **fields: Any) -> ChatMessage:
    generator = OpenAIChatGenerator(
        model=model,
        api_base_url=url,
        api_key=Secret.from_token(KEY),
        tools=tools,
        streaming_callback=(lambda chunk: None) if stream else None,
        generation_kwargs={"max_tokens": MAX_TOKENS, "temperature": 0, **fields},
    )
    pipeline = Pipeline()
    pipeline.add_component("llm", generator)
    return pipeline.run({"llm": {"messages": [ChatMessage.from_user(QUESTION)]}})["llm"]["replies"][0]


report = Report()
for name, stream in (("whole", False), ("streamed", True)):
    (call,) = ask(stream, [TOOL], tool_choice="required", parallel_tool_calls=False).tool_calls
    report.called[f"required, {name}"] = call.arguments
    report.formed[name] = json.loads(ask(stream, response_format=FORM).text)
tell(report)
