"""From a release to a proven slot: contents, slots built of them, and the process that proves a candidate."""
