"""The engine loop: plan, run, update, emit; alone in one thread, or behind asyncio."""
