"""The artefact, not the tree: what sdist and wheel hold, and that what they install works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from edgeonnx.pipeline.texts import shipped_texts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"edgeonnx", "device_agent", "edgeonnx_ext"}
KERNELS = sorted(path.stem for path in (ROOT / "ext" / "edgeonnx_ext").glob("*.pyx"))
# Run with -I in another folder, so that only what is installed can be imported.
LOOK = """
import sys
from pathlib import Path
import device_agent, edgeonnx, edgeonnx_ext
from edgeonnx.pipeline.texts import shipped_texts
assert edgeonnx_ext.HAS_NATIVE, edgeonnx_ext.NATIVE_PROBLEM
assert edgeonnx.__version__ == sys.argv[2], edgeonnx.__version__
assert len(shipped_texts()) == int(sys.argv[3])
root = Path(sys.argv[1])
for package in (device_agent, edgeonnx, edgeonnx_ext):
    folder = Path(package.__file__).parent
    assert folder.is_relative_to(root), (folder, root)
    assert (folder / "py.typed").is_file(), folder
for kernel in sys.argv[4:]:
    assert (Path(edgeonnx_ext.__file__).parent / f"{kernel}.pyi").is_file(), kernel
    assert __import__(f"edgeonnx_ext.{kernel}", fromlist=["x"]).__file__.endswith(".so"), kernel
"""


def _run(*command: str | Path, cwd: Path, timeout: int = 300) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "EDGEONNX_EXT_PURE")}
    # What is built here is looked at, not timed.
    environment |= {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "CFLAGS": "-O0"}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would commit, so that building leaves the working tree alone."""
    copy = tmp_path_factory.mktemp("tree")
    listed = _run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the tree and the wheel that `build` makes from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (file,) = built.glob("*.whl")
    return file


def _environment(folder: Path) -> Path:
    """A new virtual environment that sees this one's libraries, but none of its editable installs; its python."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    # A folder that a .pth file names is searched; the .pth files in that folder are not read.
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "python"


def _look(python: Path, root: Path, version: str) -> None:
    """The installed packages import, compiled, from where they must be; the commands work."""
    elsewhere = python.parent
    _run(python, "-I", "-c", LOOK, root, version, str(len(shipped_texts())), *KERNELS, cwd=elsewhere)
    assert version in _run(elsewhere / "edgeonnx", "--version", cwd=elsewhere)
    assert "--bundle" in _run(elsewhere / "edgeonnx-agent", "serve", "--help", cwd=elsewhere)


def _version(file: Path) -> str:
    return file.name.split("-")[1]


class TestSdist:
    def test_it_holds_what_a_build_needs_and_nothing_built(self, built: Path) -> None:
        (file,) = built.glob("*.tar.gz")
        with tarfile.open(file) as archive:
            names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
        sources = {
            path.name for suffix in ("pyx", "pxd", "pyi") for path in (ROOT / "ext/edgeonnx_ext").glob(f"*.{suffix}")
        }
        assert {f"ext/edgeonnx_ext/{name}" for name in sources} <= names
        assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "ext/edgeonnx_ext/bert_unicode.bin"} <= names
        assert [name for name in names if name.endswith((".so", ".c", ".pyc"))] == []


class TestWheel:
    def test_it_holds_our_three_packages_and_no_other(self, wheel: Path) -> None:
        names = zipfile.ZipFile(wheel).namelist()
        top = {name.split("/")[0] for name in names}
        assert top == PACKAGES | {f"edgeonnx-{_version(wheel)}.dist-info"}
        assert not any(part in ("tests", "bench", "ext", "build") for name in names for part in name.split("/"))

    def test_it_is_of_this_platform_and_has_every_kernel_compiled(self, wheel: Path) -> None:
        names = zipfile.ZipFile(wheel).namelist()
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        assert "none-any" not in wheel.name
        assert sorted(name for name in names if name.endswith(".so")) == [f"edgeonnx_ext/{k}{suffix}" for k in KERNELS]
        assert [name for name in names if name.endswith((".c", ".pyx", ".pyc"))] == []

    def test_stubs_and_data_ship(self, wheel: Path) -> None:
        names = set(zipfile.ZipFile(wheel).namelist())
        assert {f"edgeonnx_ext/{kernel}.pyi" for kernel in KERNELS} <= names
        assert {f"{package}/py.typed" for package in PACKAGES} <= names
        data = ("edgeonnx/data/texts.jsonl", "edgeonnx/data/calibration.jsonl", "edgeonnx/report/report.html.j2")
        assert {"edgeonnx_ext/bert_unicode.bin", *data} <= names

    def test_every_module_of_the_tree_is_in_it(self, wheel: Path) -> None:
        names = set(zipfile.ZipFile(wheel).namelist())
        roots = {"edgeonnx": ROOT, "device_agent": ROOT, "edgeonnx_ext": ROOT / "ext"}
        modules = {
            str(file.relative_to(base)) for package, base in roots.items() for file in (base / package).rglob("*.py")
        }
        assert len(modules) > 50
        assert modules <= names

    def test_licence_and_commands_are_declared(self, wheel: Path) -> None:
        info = f"edgeonnx-{_version(wheel)}.dist-info"
        with zipfile.ZipFile(wheel) as archive:
            assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
            metadata = archive.read(f"{info}/METADATA").decode()
            scripts = archive.read(f"{info}/entry_points.txt").decode()
        assert "License-Expression: Apache-2.0" in metadata
        assert {f"Provides-Extra: {extra}" for extra in ("host", "agent", "agent-gpu", "test")} <= set(
            metadata.splitlines()
        )
        assert "edgeonnx = edgeonnx.cli.main:main" in scripts
        assert "edgeonnx-agent = device_agent.cli.main:main" in scripts

    def test_what_it_installs_works(self, wheel: Path, tmp_path: Path) -> None:
        python = _environment(tmp_path / "venv")
        _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel, cwd=tmp_path)
        _look(python, tmp_path / "venv", _version(wheel))


def test_an_editable_install_works_the_same(tree: Path, wheel: Path, tmp_path: Path) -> None:
    python = _environment(tmp_path / "venv")
    options = ("--no-deps", "--no-build-isolation", "--editable", tree)
    _run(sys.executable, "-m", "pip", "--python", python, "install", *options, cwd=tmp_path)
    _look(python, tree, _version(wheel))
