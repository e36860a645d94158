"""The task of all clients in Python: call a tool, and answer in a form, each whole and streamed.

They run in an environment of their own: `python with_NAME.py URL MODEL`. Each prints one line of JSON, its `Report`.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from pydantic import BaseModel, Field

QUESTION = "What will the weather in Paris be like in the next three days?"
MAX_TOKENS = 200
KEY = "none"


class Forecast(BaseModel):
    """The weather of some days in a city."""

    city: str = Field(max_length=16, pattern="^[A-Z][a-z]*$")
    unit: Literal["celsius", "kelvin"]
    days: int = Field(ge=1, le=5)


SCHEMA: dict[str, Any] = {**Forecast.model_json_schema(), "additionalProperties": False}
"""The form as clients send it that do not close objects themselves."""


class Report(BaseModel):
    """What came back.

    called: arguments of the calls that a tool got, or that the client has put together.
    formed: answers in a form.
    """

    called: dict[str, Any] = {}
    formed: dict[str, Any] = {}


def arguments() -> tuple[str, str]:
    """The server's URL, and its model."""
    url, model = sys.argv[1:3]
    return f"{url}/v1", model


def tell(report: Report) -> None:
    """Print it as the last line."""
    print(report.model_dump_json())
