"""What an operator sees: metrics, the status page, traces."""
