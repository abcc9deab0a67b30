"""The HTTP server: OpenAI's, Anthropic's and Ollama's APIs over one engine."""
