"""openai-agents: an agent whose tool must be called, and one with an output type, over responses and chat completions."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from task import KEY, MAX_TOKENS, QUESTION, Forecast, Report, arguments, tell

MODELS: dict[str, Any] = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}


async def answered(agent: Agent[Any], told: Any, *, stream: bool) -> Any:
    """The agent's run."""
    if not stream:
        return await Runner.run(agent, told)
    running = Runner.run_streamed(agent, told)
    async for _ in running.stream_events():
        pass
    return running


async def main() -> Report:
    report = Report()
    url, name = arguments()
    client = AsyncOpenAI(base_url=url, api_key=KEY)
    seen: list[Forecast] = []

    @function_tool
    def forecast(wanted: Forecast) -> str:
        """The weather of some days in a city."""
        seen.append(wanted)
        return f"{wanted.days} sunny days in {wanted.city}."

    for api, kind in MODELS.items():
        model = kind(model=name, openai_client=client)
        settings = ModelSettings(temperature=0, max_tokens=MAX_TOKENS)
        forced = ModelSettings(temperature=0, max_tokens=MAX_TOKENS, tool_choice="required", parallel_tool_calls=False)
        # So small a model would call again and again.
        once: Any = {"tools": [forecast], "tool_use_behavior": "stop_on_first_tool"}
        caller = Agent(name="caller", model=model, model_settings=forced, **once)
        reader = Agent(name="reader", model=model, model_settings=settings)
        writer = Agent(name="writer", model=model, model_settings=settings, output_type=Forecast)
        for way, stream in (("whole", False), ("streamed", True)):
            seen.clear()
            called = await answered(caller, QUESTION, stream=stream)
            assert called.final_output.endswith(f"{seen[0].city}.")
            behind = [*called.to_input_list(), {"role": "user", "content": "Thank you. Is that good?"}]
            assert (await answered(reader, behind, stream=stream)).final_output
            report.called[f"{api}, required, {way}"] = seen[0].model_dump()
            report.formed[f"{api}, {way}"] = (await answered(writer, QUESTION, stream=stream)).final_output.model_dump()
    return report


set_tracing_disabled(True)
tell(asyncio.run(main()))
