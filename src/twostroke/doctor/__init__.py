"""Doctor: which phase holds the wait, read from any engine's log or asked of a running endpoint.

Pure standard library: neither NumPy nor the native module is imported here or below.
"""
