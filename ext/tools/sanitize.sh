#!/bin/sh
# The extension's tests under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   ext/tools/sanitize.sh [pytest arguments]      without arguments: the unit, property and fuzz tests of the extension
#
# SLOW=1  takes the slow tests too (every code point in every place: the library's own time under the sanitizer)
#
# PYTHON  the interpreter, with the test requirements installed (.venv/bin/python)
# WORK    where the instrumented copy of the package is built (.work/sanitized)
# MODULES names such as "_pooling _scores", to build only these; without, all
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}
WORK=${WORK:-.work/sanitized}

# shellcheck disable=SC2086
"$PYTHON" ext/tools/build_instrumented.py sanitized "$WORK" ${MODULES:-}
WORK=$(cd "$WORK" && pwd)

# Leaks are another test's business (tests/fuzz/leaks.py): Python keeps a lot until its end.
# libstdc++ is loaded first too, or the sanitizer does not find what it wraps for C++ modules.
sanitized() {
    env LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)" \
        ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=1:allocator_may_return_null=1" \
        UBSAN_OPTIONS="print_stacktrace=1" \
        PYTHONMALLOC=malloc PYTHONPATH="$WORK/ext" OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false \
        "$PYTHON" "$@"
}

# A call that makes a deliberate mistake must end the process, with a report that names the mistake.
must_report() {
    if report=$(sanitized -c "import sanitizer_probe; sanitizer_probe.$1" 2>&1); then
        report="it returned"
    fi
    case $report in
    *"$2"*) ;;
    *)
        echo "sanitize.sh: expected a report of '$2' from $1, found: $report" >&2
        echo "sanitize.sh: the sanitizers are not alive" >&2
        exit 1
        ;;
    esac
}
must_report "over_read(8)" "heap-buffer-overflow"
must_report "overflow(2147483647)" "signed integer overflow"

# The instrumented modules must be those that the tests load, before an installed or an editable package.
sanitized - "$WORK" "${MODULES:+some}" <<'END'
import importlib
import pathlib
import sys

import edgeonnx_ext

folder = pathlib.Path(sys.argv[1], "ext", "edgeonnx_ext")
names = sorted(path.stem for path in folder.glob("*.pyx"))
for name in names:
    found = pathlib.Path(importlib.import_module(f"edgeonnx_ext.{name}").__file__)
    if found.parent != folder:
        sys.exit(f"sanitize.sh: expected {name} from {folder}, found {found}")
if not (edgeonnx_ext.HAS_NATIVE or sys.argv[2]):
    sys.exit(f"sanitize.sh: the plain twins are in use: {edgeonnx_ext.NATIVE_PROBLEM}")
print(f"sanitize.sh: both sanitizers are alive in {', '.join(names)}")
END

# The plain twins have nothing to watch; and resident memory says nothing while freed blocks stay in quarantine.
if [ $# -eq 0 ]; then
    set -- tests/unit/ext tests/property/test_ext_*.py tests/fuzz -k "not reference and not leak" -o timeout=1200
    [ -n "${SLOW:-}" ] || set -- "$@" -m "not slow"
fi
# pytest would catch what a dying process writes to its standard error, which then nobody sees: --capture=sys.
sanitized -m pytest -q -p no:cacheprovider -p no:faulthandler --capture=sys "$@"
