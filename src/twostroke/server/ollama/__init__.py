"""Ollama's API: chat, generate and models."""
