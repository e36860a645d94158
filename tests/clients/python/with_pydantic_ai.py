"""pydantic-ai: agents with a tool and with output types, over chat completions and responses."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from task import KEY, MAX_TOKENS, QUESTION, Forecast, Report, arguments, tell

MODELS: dict[str, Any] = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
OUTPUTS: dict[str, Any] = {"a tool's arguments": ToolOutput(Forecast), "json_schema": NativeOutput(Forecast)}
SETTINGS: Any = {"temperature": 0, "max_tokens": MAX_TOKENS, "parallel_tool_calls": False}


async def answered(agent: Agent[Any, Any], *, stream: bool) -> Any:
    """The agent's output."""
    if not stream:
        return (await agent.run(QUESTION)).output
    async with agent.run_stream(QUESTION) as running:
        return await running.get_output()


async def main() -> Report:
    report = Report()
    url, name = arguments()
    provider = OpenAIProvider(base_url=url, api_key=KEY)
    for api, kind in MODELS.items():
        model = kind(name, provider=provider)
        for output, kind_of_output in OUTPUTS.items():
            agent = Agent(model, output_type=kind_of_output, model_settings=SETTINGS)
            for way, stream in (("whole", False), ("streamed", True)):
                told = (await answered(agent, stream=stream)).model_dump()
                place = report.called if output.startswith("a tool") else report.formed
                place[f"{api}, {output}, {way}"] = told
    return report


tell(asyncio.run(main()))
