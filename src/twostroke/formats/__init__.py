"""Untrusted model files -> named tensors. Checks bounds, decodes blocks; knows no model family."""
