"""The report of a finished bundle: read from its metadata alone, written all or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeonnx.errors import IntegrityError, ManifestError, NotABundleError, UsageError
from edgeonnx.pipeline.report import check_output, report, write_page
from edgeonnx.report.html import render
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.timings import TIMINGS_FILE
from tests.support.bundles import make_bundle
from tests.support.cli import environment
from tests.unit.report import sample


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path)


def test_a_bundle_without_evidence_of_variants_has_a_report(bundle: Path) -> None:
    found = report(bundle)
    assert (found.manifest.name, found.timings) == ("tiny", None)
    assert found.contents is not None
    assert found.digest == found.contents.digest
    assert b"tiny" in render(found)


def test_timings_beside_the_sealed_files_are_read_and_leave_the_digest_alone(bundle: Path) -> None:
    before = report(bundle).digest
    (bundle / TIMINGS_FILE).write_bytes(canonical_json(sample.timings().to_dict()))
    found = report(bundle)
    assert found.timings is not None
    assert found.timings.graphs["cpu-fp32"].texts_per_second == 148.1
    assert found.digest == before


def test_a_page_inside_the_bundle_leaves_it_whole(bundle: Path) -> None:
    write_page(render(report(bundle)), bundle / "report.html")
    assert render(report(bundle)) == (bundle / "report.html").read_bytes()


def test_what_is_no_bundle_is_refused(tmp_path: Path, bundle: Path) -> None:
    with pytest.raises(NotABundleError):
        report(tmp_path / "none")
    (bundle / TIMINGS_FILE).write_text("{")
    with pytest.raises(ManifestError, match=r"timings\.json"):
        report(bundle)
    (bundle / TIMINGS_FILE).unlink()
    (bundle / "encoder" / "cpu-fp32" / "model.onnx").unlink()
    with pytest.raises(IntegrityError):
        report(bundle)


def test_a_report_needs_neither_weights_nor_what_reads_them(bundle: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from edgeonnx.pipeline.report import report; "
        "from edgeonnx.report.html import render; import edgeonnx.cli.report; render(report(Path(sys.argv[1]))); "
        "print(sorted({'torch', 'transformers', 'onnx', 'onnxruntime', 'onnx_ir'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bundle)], capture_output=True, text=True, env=environment(), check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_existing_page_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    write_page(b"one", file)
    with pytest.raises(UsageError, match="exists already"):
        write_page(b"two", file)
    assert file.read_bytes() == b"one"
    with file.open("rb") as reader:
        write_page(b"two", file, replace=True)
        assert reader.read() == b"one", "who reads the old page reads it to its end"
    assert file.read_bytes() == b"two"
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]


def test_a_folder_is_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file"):
        check_output(tmp_path, replace=True)


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_page(b"x", tmp_path / "none" / "page.html")
    file = tmp_path / "page.html"
    file.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_page(b"new", file, replace=True)
    assert file.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]
