"""The report of a build for people: one HTML file that needs no network, drawn from evidence alone."""
