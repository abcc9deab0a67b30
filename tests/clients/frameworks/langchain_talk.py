"""What LangChain makes of the server at argv[1], as JSON; in an environment of its own."""

from __future__ import annotations

import json
import sys

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"17 degrees in {city}"


def main() -> None:
    model = ChatOpenAI(
        base_url=sys.argv[1] + "/v1",
        api_key="x",
        model="tiny",
        temperature=0,
        max_tokens=40,
        max_retries=0,
    )
    question = [HumanMessage("What is the capital of France? Answer in one word.")]
    whole = model.invoke(question)
    chunks = list(model.stream(question, stream_usage=True))
    asked = [HumanMessage("How is the weather in Rome?")]
    call = model.bind_tools([weather], tool_choice="any").invoke(asked)
    told = [ToolMessage(weather.invoke(c["args"]), tool_call_id=c["id"]) for c in call.tool_calls]
    after = model.bind_tools([weather]).invoke([*asked, call, *told])
    form = model.with_structured_output(City, method="json_schema").invoke(question)
    try:
        model.invoke(question, top_p=7)
        error = None
    except openai.BadRequestError as refused:
        error = refused.param
    print(
        json.dumps(
            {
                "text": whole.content,
                "usage": whole.usage_metadata,
                "streamed": "".join(chunk.content for chunk in chunks),
                "stream_usage": [c.usage_metadata for c in chunks if c.usage_metadata][-1],
                "calls": call.tool_calls,
                "after": after.type,
                "form": form.model_dump(),
                "error": error,
            }
        )
    )


main()
