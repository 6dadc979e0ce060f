"""The repository of releases: static files that TUF signs. Only the build host writes them."""
