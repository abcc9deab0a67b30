"""What `twostroke bench` runs: each phase alone, on the real runner, beside its ceiling."""
