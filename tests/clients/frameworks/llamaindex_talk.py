"""What LlamaIndex makes of the server at argv[1], as JSON; in an environment of its own."""

from __future__ import annotations

import json
import sys

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"17 degrees in {city}"


def main() -> None:
    model = OpenAILike(
        api_base=sys.argv[1] + "/v1",
        api_key="x",
        model="tiny",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=2048,
        temperature=0,
        max_tokens=40,
        max_retries=0,
    )
    question = [
        ChatMessage(role="user", content="What is the capital of France? Answer in one word.")
    ]
    whole = model.chat(question)
    streamed = "".join(part.delta or "" for part in model.stream_chat(question))
    tool = FunctionTool.from_defaults(weather)
    answer = model.chat_with_tools(
        [tool], user_msg="How is the weather in Rome?", tool_required=True
    )
    calls = model.get_tool_calls_from_response(answer)
    print(
        json.dumps(
            {
                "text": whole.message.content,
                "streamed": streamed,
                "completed": model.complete(question[0].content).text,
                "calls": [[c.tool_name, c.tool_kwargs] for c in calls],
                "results": [tool(**c.tool_kwargs).content for c in calls],
                "predicted_n": whole.raw.timings["predicted_n"],
            }
        )
    )


main()
