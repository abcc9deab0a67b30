"""Text at both ends of a request: prompt to token ids, token ids to streamed text.

tokenizer.py and chat.py work before a request, detokenizer.py and stop.py while it runs. Nothing
here knows the engine.
"""
