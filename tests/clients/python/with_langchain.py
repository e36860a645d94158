"""langchain-openai: `bind_tools` and `with_structured_output` of `ChatOpenAI`, over chat completions and responses."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from task import KEY, MAX_TOKENS, QUESTION, Forecast, Report, arguments, tell


@tool(args_schema=Forecast)
def forecast(city: str, unit: str, days: int) -> str:
    """The weather of some days in a city."""
    return f"{days} sunny days in {city}, 20 {unit}."


def streamed(chain: Any) -> Any:
    """All chunks added up."""
    whole: Any = None
    for chunk in chain.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    return whole


report = Report()
url, model_name = arguments()
for api, responses in (("chat", False), ("responses", True)):
    model = ChatOpenAI(
        base_url=url, api_key=KEY, model=model_name, temperature=0, max_tokens=MAX_TOKENS, use_responses_api=responses
    )
    bound = model.bind_tools([forecast], tool_choice="required", parallel_tool_calls=False)
    for name, answer in (("whole", bound.invoke(QUESTION)), ("streamed", streamed(bound))):
        (call,) = answer.tool_calls
        assert forecast.invoke(call).content.startswith(str(call["args"]["days"]))
        report.called[f"{api}, required, {name}"] = call["args"]
    for method in ("json_schema", "function_calling"):
        formed = model.with_structured_output(Forecast, method=method)
        report.formed[f"{api}, {method}, whole"] = formed.invoke(QUESTION).model_dump()
        *_, last = formed.stream(QUESTION)
        report.formed[f"{api}, {method}, streamed"] = last.model_dump()
tell(report)
