"""What the serving process does about updates: it begins them, swaps what they proved, and watches the new version."""
