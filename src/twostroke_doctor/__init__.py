"""Doctor: which phase holds the wait, read from any engine's log or asked of a running endpoint.

Pure standard library: neither NumPy nor the native module is imported here or below.
"""

from twostroke_doctor.parsed import FACTS, FLAGS, Fact, Parsed
from twostroke_doctor.parsers import LogScanner, iter_items, parse

__all__ = ["FACTS", "FLAGS", "Fact", "LogScanner", "Parsed", "iter_items", "parse"]
