"""AutoGen: `OpenAIChatCompletionClient` with a tool that must be called and with a form, and an agent that answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import CreateResult, ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from task import KEY, MAX_TOKENS, QUESTION, SCHEMA, Forecast, Report, arguments, tell

TOOL: Any = {"name": "forecast", "description": "The weather of some days in a city.", "parameters": SCHEMA}
ASKED: dict[str, Any] = {"messages": [UserMessage(content=QUESTION, source="user")]}


def called(result: CreateResult) -> Any:
    (call,) = result.content
    assert call.name == "forecast"
    return json.loads(call.arguments)


async def last(stream: Any) -> Any:
    parts = [part async for part in stream]
    return parts[-1]


async def main() -> None:
    url, model = arguments()
    client = OpenAIChatCompletionClient(
        model=model,
        base_url=url,
        api_key=KEY,
        max_tokens=MAX_TOKENS,
        temperature=0,
        parallel_tool_calls=False,
        model_info=ModelInfo(
            vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True
        ),
    )
    report = Report()
    tool: dict[str, Any] = {**ASKED, "tools": [TOOL], "tool_choice": "required"}
    report.called["whole"] = called(await client.create(**tool))
    report.called["streamed"] = called(await last(client.create_stream(**tool)))
    report.formed["whole"] = json.loads((await client.create(**ASKED, json_output=Forecast)).content)
    report.formed["streamed"] = json.loads((await last(client.create_stream(**ASKED, json_output=Forecast))).content)
    agent = AssistantAgent("helper", model_client=client, output_content_type=Forecast)
    said = (await agent.run(task=QUESTION)).messages[-1]
    report.formed["agent"] = said.content.model_dump()
    tell(report)


asyncio.run(main())
