"""Advice: from measured times to changes, each with the seconds that it would save.

Arithmetic on records and predictions; knows no engine, no log and no clock. A saving is exact, a
range, or None where nothing can be computed: never folklore.
"""

from twostroke.advice.cure import Cure
from twostroke.advice.cures import for_record

__all__ = ["Cure", "for_record"]
