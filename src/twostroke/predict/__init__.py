"""Prediction: a model's work, a machine's speed, and the time of a step that follows from both."""
