"""Asks a running endpoint and tells its phases apart from outside, by control experiments."""

from twostroke_doctor.probe.plan import ProbeLimits, ProbePlan, make_plan
from twostroke_doctor.probe.run import run_plan

__all__ = ["ProbeLimits", "ProbePlan", "make_plan", "run_plan"]
