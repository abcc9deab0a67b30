"""KV blocks by id: the pool, the prefix tree, the manager, and why a prompt missed."""
