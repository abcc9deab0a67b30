"""Runners: what turns a StepPlan into tokens. `simulated` needs no model."""
