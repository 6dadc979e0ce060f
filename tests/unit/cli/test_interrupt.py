"""A build that is stopped leaves nothing behind: a real process, a real model, a real signal."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.bundles import make_bundle
from tests.support.cli import command, environment


def start(source: Path, out: Path, *extra: str) -> subprocess.Popen[str]:
    line = command("package", str(source), "--name", "tiny", "--version", "1.0.0", "--out", str(out), *extra)
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def wait_for_staging(process: subprocess.Popen[str], out: Path, seconds: float = 60) -> Path:
    """The hidden folder that the build writes to, as soon as it holds something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        found = [path for path in out.glob(".*.partial") if any(path.iterdir())] if out.is_dir() else []
        if found:
            return found[0]
        time.sleep(0.02)
    raise AssertionError(f"the build did not begin to write: {process.communicate(timeout=10)}")


@pytest.mark.slow
def test_sigterm_while_writing_leaves_the_old_bundle_and_nothing_else(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.support.models import tiny_model

    bundle = make_bundle(tmp_path)
    before = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    process = start(tiny_model(tmp_path_factory.mktemp("model")), tmp_path, "--force")
    staging = wait_for_staging(process, tmp_path)
    assert staging.parent == tmp_path
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1] == "interrupted; what was there before is unchanged"
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-1.0.0"]
    assert {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_ctrl_c_before_anything_is_written_leaves_no_folder(minilm_dir: Path, tmp_path: Path) -> None:
    process = start(minilm_dir, tmp_path / "out")
    assert process.stderr
    assert process.stderr.readline().startswith("✓ load")  # the export runs now
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
