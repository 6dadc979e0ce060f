"""The update process: it fetches, checks, stages and proves a release, and ends; nothing of it stays in memory."""
