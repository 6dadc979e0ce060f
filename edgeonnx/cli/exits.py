"""The exit codes of `edgeonnx`, as its help shows them; each error class has its own (`EdgeOnnxError.exit_code`)."""

INTERRUPTED = 130

HELP = """\b
Exit codes:
  0    success
  1    an unexpected failure (a bug: please report it)
  2    wrong usage, or the output exists already
  3    the source model cannot be used
  4    export, validation or quantization failed; nothing was written
  5    the bundle is damaged, or is not a bundle
  6    the bundle does not give its golden answers on this machine
  7    a library is missing
  8    a variant does not keep the thresholds of the gate; nothing was written
  9    a repository, its keys or its signatures cannot be used, or it is damaged
  10   a file could not be fetched; the next try may succeed
  11   this machine cannot take or give back a release
  12   the agent that was asked does not answer, or refuses
  130  interrupted"""
