"""Who computes what in the next step: policy as pure functions, the scheduler as the sole writer of requests."""
