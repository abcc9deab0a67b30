"""What a phase should cost: operations and bytes of a slice, and this machine's peaks."""
