"""KV blocks by id: the pool, the prefix tree, the manager that is their only door, and why a prompt missed."""
