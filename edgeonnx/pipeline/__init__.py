"""The only place that knows all stages: `package`, `inspect` and `verify` as functions without a terminal."""
