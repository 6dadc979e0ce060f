"""Who may import whom: the contracts of pyproject.toml, and what import-linter cannot see."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTENSION = ROOT / "ext" / "edgeonnx_ext"
# `import x`, `from x import y`, and both with cimport; the module's name is what counts.
CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\b|c?import\s+([\w.]+))", re.MULTILINE)
CYTHON_MAY_IMPORT = {"numpy", "cython", "libc", "cpython", "edgeonnx_ext", "__future__"}
HEAVY = (
    "torch",
    "transformers",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "onnxruntime",
    "tokenizers",
    "safetensors",
    "fastapi",
)
HOST_ONLY = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "safetensors", "huggingface_hub")


def _python(script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "ext")))
    run = [sys.executable, *flags, "-c", script]
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(run, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120, check=False)


def _lint_imports(config: Path) -> subprocess.CompletedProcess[str]:
    call = f"lint_imports(config_filename={str(config)!r}, no_cache=True)"
    return _python(f"import sys; from importlinter.cli import lint_imports; sys.exit({call})")


def test_the_contracts_are_kept() -> None:
    done = _lint_imports(ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert f"{len(written)} kept, 0 broken" in done.stdout


def test_a_broken_contract_is_noticed(tmp_path: Path) -> None:
    """The check above can fail: a contract that the code does not keep is reported as broken."""
    config = tmp_path / "contracts.toml"
    config.write_text(
        '[tool.importlinter]\nroot_packages = ["edgeonnx", "device_agent"]\n'
        '[[tool.importlinter.contracts]]\nname = "no spec on the device"\ntype = "forbidden"\n'
        'source_modules = ["device_agent"]\nforbidden_modules = ["edgeonnx.spec"]\n'
    )
    done = _lint_imports(config)
    assert done.returncode != 0
    assert "0 kept, 1 broken" in done.stdout


@pytest.mark.parametrize(
    "file", sorted([*EXTENSION.glob("*.pyx"), *EXTENSION.glob("*.pxd")]), ids=lambda file: file.name
)
def test_compiled_modules_import_numpy_the_standard_library_and_their_own_package_only(file: Path) -> None:
    found = {(first or second).split(".")[0] for first, second in CYTHON_IMPORT.findall(file.read_text())}
    assert found or file.suffix == ".pxd", "every module imports something: has the form of the imports changed?"
    assert found <= CYTHON_MAY_IMPORT | sys.stdlib_module_names


def test_imports_of_compiled_modules_are_seen_in_every_form() -> None:
    source = "import a.b\ncimport c\nfrom d.e cimport (\n    f,\n)\n    from g import h  # late\nimported = 1\n"
    assert [first or second for first, second in CYTHON_IMPORT.findall(source)] == ["a.b", "c", "d.e", "g"]


@pytest.mark.parametrize(
    "code",
    [
        "import edgeonnx",
        "from edgeonnx.cli.main import app; run(['--help'])",
        "from edgeonnx.cli.main import app; run(['--version'])",
        "from edgeonnx.cli.main import app; run(['package', '--help'])",
        "from edgeonnx.cli.main import app; run(['verify', '--help'])",
    ],
)
def test_help_is_given_without_loading_the_libraries(code: str) -> None:
    script = f"""
import sys
def run(arguments):
    try:
        app(arguments, prog_name="edgeonnx")
    except SystemExit as end:
        assert end.code == 0, end.code
{code}
loaded = sorted(name for name in {HEAVY!r} if name in sys.modules)
assert not loaded, loaded
"""
    done = _python(script)
    assert done.returncode == 0, done.stderr


def test_spec_and_errors_need_nothing_but_the_standard_library() -> None:
    """Without site-packages (-S) no library can be imported at all."""
    script = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}]
import importlib, pkgutil
import edgeonnx.errors, edgeonnx.spec
names = [name for _, name, _ in pkgutil.iter_modules(edgeonnx.spec.__path__, "edgeonnx.spec.")]
assert len(names) >= 7, names
for name in names:
    importlib.import_module(name)
foreign = {{name.split(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names) - {{"edgeonnx", "__main__"}}
assert not foreign, foreign
try:
    import numpy
except ImportError:
    sys.exit(0)
sys.exit("numpy is importable, so this check proves nothing")
"""
    done = _python(script, "-I", "-S")
    assert done.returncode == 0, done.stderr


def test_every_module_of_the_device_imports_without_the_hosts_libraries() -> None:
    script = f"""
import importlib, pkgutil, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HOST_ONLY!r}:
            raise ModuleNotFoundError(f"{{name}} is not on the device")
sys.meta_path.insert(0, Absent())
import device_agent, edgeonnx.bundle, edgeonnx_ext
done = 0
for package in (device_agent, edgeonnx.bundle, edgeonnx_ext):
    for _, name, _ in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(name)
        done += 1
assert done > 15, done
try:
    import onnx
except ModuleNotFoundError:
    sys.exit(0)
sys.exit("the block does not work")
"""
    done = _python(script)
    assert done.returncode == 0, done.stderr


def test_the_extension_is_imported_as_a_whole() -> None:
    """The agent imports it in two threads at once.

    A thread that asks for a submodule while another one still runs the package's `__init__` loads that submodule
    itself, and both wait for each other's locks: Python then hands out half a module. Asking for the package waits.
    """
    parts = re.compile(r"^\s*(?:from|import)\s+edgeonnx_ext\.", re.MULTILINE)
    for package in ("device_agent", "edgeonnx"):
        for file in sorted((ROOT / package).rglob("*.py")):
            assert not parts.search(file.read_text(encoding="utf-8")), file


def test_two_threads_may_import_the_agent_at_once() -> None:
    """The second begins while the first is within the extension's `__init__`."""
    code = (
        "import sys, threading, time, importlib\n"
        "inside, failures = threading.Event(), []\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'edgeonnx_ext._kernels': inside.set(); time.sleep(1.0)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "def load(name):\n"
        "    try: importlib.import_module(name)\n"
        "    except ImportError as error: failures.append(repr(error))\n"
        "first = threading.Thread(target=load, args=('edgeonnx_ext',))\n"
        "first.start()\n"
        "inside.wait()\n"
        "load('device_agent.inference.text')\n"
        "first.join()\n"
        "sys.exit('; '.join(failures) or 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
