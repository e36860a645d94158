"""llama-index: `OpenAILike` with a tool that must be called, and `structured_predict`."""

from __future__ import annotations

from typing import Any

from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from task import KEY, MAX_TOKENS, QUESTION, Forecast, Report, arguments, tell


def forecast(city: str, unit: str, days: int) -> str:
    """The weather of some days in a city."""
    return f"{days} sunny days in {city}, 20 {unit}."


def called(llm: OpenAILike, response: Any) -> Any:
    (call,) = llm.get_tool_calls_from_response(response)
    assert call.tool_name == "forecast"
    return call.tool_kwargs


url, model = arguments()
llm = OpenAILike(
    api_base=url,
    api_key=KEY,
    model=model,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    temperature=0,
    max_tokens=MAX_TOKENS,
    context_window=2048,
)
tool = FunctionTool.from_defaults(forecast, fn_schema=Forecast)
report = Report()
asked: dict[str, Any] = {
    "tools": [tool],
    "user_msg": QUESTION,
    "tool_required": True,
    "allow_parallel_tool_calls": False,
}
report.called["chat, required, whole"] = called(llm, llm.chat_with_tools(**asked))
*_, last = llm.stream_chat_with_tools(**asked)
report.called["chat, required, streamed"] = called(llm, last)
prompt = PromptTemplate(QUESTION)
report.formed["chat, whole"] = llm.structured_predict(Forecast, prompt).model_dump()
*_, formed = llm.stream_structured_predict(Forecast, prompt)
report.formed["chat, streamed"] = formed.model_dump()
tell(report)
