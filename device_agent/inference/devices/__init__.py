"""What this machine can run on: execution providers tried, opened and kept track of."""
