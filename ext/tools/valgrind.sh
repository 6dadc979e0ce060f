#!/bin/sh
# The fuzz targets of the extension under valgrind memcheck, a few inputs each: reads of memory that was never written,
# which the sanitizers do not see, and leaks.
#
#   ext/tools/valgrind.sh [TARGET...]     without: all targets of tests/fuzz
#
# PYTHON  the interpreter, with the test requirements installed (.venv/bin/python)
# WORK    where the instrumented copy of the package is built (.work/valgrind)
# MODULES names such as "_pooling _scores", to build only these; without, all
# COUNT   inputs of each target (20)
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}
WORK=${WORK:-.work/valgrind}

# shellcheck disable=SC2086
"$PYTHON" ext/tools/build_instrumented.py valgrind "$WORK" ${MODULES:-}
WORK=$(cd "$WORK" && pwd)
rm -f "$WORK"/*.xml

# Only errors that go through our shared objects count (valgrind_report.py), so no suppressions are needed.
checked() {
    report=$WORK/$1.xml
    shift
    env PYTHONMALLOC=malloc PYTHONPATH="$WORK/ext" OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false \
        valgrind --quiet --tool=memcheck --error-limit=no --num-callers=30 --keep-debuginfo=yes \
        --leak-check=full --show-leak-kinds=definite --xml=yes --xml-file="$report" "$PYTHON" "$@"
}

# A deliberate mistake must be found, or what follows proves nothing.
checked probe -c "import sanitizer_probe; sanitizer_probe.over_read(8)" || true
if "$PYTHON" ext/tools/valgrind_report.py "$WORK/ext" "$WORK/probe.xml" >/dev/null; then
    echo "valgrind.sh: the deliberate over-read was not reported: valgrind sees nothing" >&2
    exit 1
fi
rm "$WORK/probe.xml"

[ $# -gt 0 ] || set -- all
status=0
checked run -m tests.fuzz.run --count "${COUNT:-20}" "$@" || status=$?
"$PYTHON" ext/tools/valgrind_report.py "$WORK/ext" "$WORK"/run.xml || status=1
exit $status
