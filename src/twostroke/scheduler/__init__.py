"""Who computes what in the next step: policy, predictor, and the scheduler itself."""
