"""What is trusted: the metadata that the repository's keys signed, what was accepted before, and the time."""
