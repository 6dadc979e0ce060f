"""The command line of the build host: one thin function per verb, drawing and exit codes apart from the work."""
