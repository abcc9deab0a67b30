"""Intervals from moments: the engine's events become one record per request."""
