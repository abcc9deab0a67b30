"""Parsers: one file an engine, from the lines that it prints to records, windows and facts."""

from twostroke_doctor.parsers.scan import LogScanner, iter_items, parse

__all__ = ["LogScanner", "iter_items", "parse"]
