"""What each step computes: admission, order, memory and budget of the running sequences."""
