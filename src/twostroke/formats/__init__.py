"""Untrusted model files -> named tensors. Knows no model family: it checks bounds and decodes blocks."""
