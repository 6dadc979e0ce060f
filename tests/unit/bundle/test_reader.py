"""Reading a whole bundle, and counting what differs; hostile ones stand in tests/attacks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeonnx.bundle import open_bundle, verify_files
from edgeonnx.bundle import reader as reader_module
from edgeonnx.errors import IntegrityError, ManifestError, NotABundleError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.timings import Timing, Timings
from tests.support.bundles import CPU_VARIANTS, golden_set, make_bundle, tokenizer_json
from tests.support.decoders import TEMPLATE, make_decoder_bundle
from tests.support.tamper import edit_json, relist, replace_asset


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path, Task.EMBEDDING)


def test_everything_of_a_bundle_is_found(bundle: Path) -> None:
    opened = open_bundle(bundle)
    variant = opened.manifest.entry_component.variants[0]
    assert opened.manifest.name == "tiny"
    assert opened.digest == hashlib.sha256((bundle / "contents.json").read_bytes()).hexdigest()
    assert opened.model_path("encoder", variant).is_file()
    tensors = opened.tensors_path(variant)
    assert tensors is not None
    assert tensors.is_dir()
    assert opened.tokenizer_json() == tokenizer_json()
    assert opened.evidence().tools == {}
    golden = opened.golden()
    np.testing.assert_array_equal(golden.mask, golden_set(Task.EMBEDDING).mask)


def test_variants_keep_the_order_of_preference(tmp_path: Path) -> None:
    providers = ("CUDAExecutionProvider", "CPUExecutionProvider")
    for order in (providers, providers[::-1]):
        bundle = make_bundle(tmp_path / order[0], providers=order)
        found = open_bundle(bundle).manifest.entry_component.variants
        assert tuple(variant.requirements.provider for variant in found) == order


def test_a_bundle_may_be_named_through_a_link(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(bundle)
    assert open_bundle(tmp_path / "current").root == bundle.resolve()


def test_verify_hashes_every_file_and_reports_each(bundle: Path) -> None:
    seen: list[str] = []
    opened = open_bundle(bundle)
    verify_files(opened, on_file=lambda entry: seen.append(entry.path))
    assert seen == [entry.path for entry in opened.contents.files]


@pytest.mark.parametrize(
    ("made", "found"), [("nothing", "no such folder"), ("a file", "no such folder"), ("a folder", "no manifest.json")]
)
def test_what_is_no_bundle_says_what_was_expected(tmp_path: Path, made: str, found: str) -> None:
    path = tmp_path / "x"
    if made == "a file":
        path.write_text("x")
    elif made == "a folder":
        path.mkdir()
    with pytest.raises(NotABundleError) as caught:
        open_bundle(path)
    assert caught.value.where == str(path)
    assert caught.value.found == found
    assert "manifest.json" in (caught.value.expected or "")
    assert "edgeonnx package" in (caught.value.hint or "")


def test_every_difference_is_listed_up_to_a_limit(bundle: Path) -> None:
    for index in range(30):
        (bundle / f"extra{index:02}").write_text("x")
    with pytest.raises(IntegrityError) as caught:
        open_bundle(bundle)
    assert caught.value.details[0] == "extra00: not listed in contents.json"
    assert caught.value.details[-1] == "and 10 more"
    assert "again" in (caught.value.hint or "")


def test_the_number_of_files_is_bounded(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_FILES", 5)
    with pytest.raises(IntegrityError, match="holds too many files; expected at most 5"):
        open_bundle(bundle)


@pytest.mark.parametrize("limit", ["MAX_CONTENTS_BYTES", "MAX_METADATA_BYTES"])
def test_metadata_is_read_up_to_a_bound(bundle: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(reader_module, limit, 10)
    with pytest.raises(IntegrityError, match="is too large") as caught:
        open_bundle(bundle)
    assert caught.value.expected == "at most 10 bytes"


def test_a_bundle_without_evidence_is_refused(bundle: Path) -> None:
    (bundle / "evidence.json").unlink()
    relist(bundle)
    with pytest.raises(ManifestError, match="names a file that the bundle does not hold") as caught:
        open_bundle(bundle)
    assert caught.value.found == "evidence.json"


def test_an_asset_with_another_digest_than_its_name_is_refused(bundle: Path) -> None:
    folder = next((bundle / "shared_assets").glob("*/tokenizer.json")).parent
    (folder / "tokenizer.json").write_text("{}")
    relist(bundle)
    with pytest.raises(IntegrityError, match="does not have the digest that its name says") as caught:
        open_bundle(bundle)
    assert caught.value.where == f"shared_assets/{folder.name}"


def test_the_tampering_helper_makes_bundles_that_open(bundle: Path) -> None:
    replace_asset(bundle, "tokenizer.json", lambda folder: (folder / "tokenizer.json").write_text("{}") and None)
    opened = open_bundle(bundle)
    verify_files(opened)
    assert opened.tokenizer_json() == b"{}"


TIMINGS = Timings(
    machine={"processor": "a CPU", "architecture": "x86_64"},
    graphs={
        "cpu-int8": Timing(
            threads=1,
            texts=2,
            tokens=9,
            texts_per_second=100.5,
            tokens_per_second=452.25,
            latency_ms=2.0,
            latency_p95_ms=3.5,
        )
    },
    stages={"export": 1.5},
)


def test_timings_are_read_where_there_are_any(bundle: Path) -> None:
    assert open_bundle(bundle).timings() is None
    (bundle / "timings.json").write_bytes(canonical_json(TIMINGS.to_dict()))
    assert open_bundle(bundle).timings() == TIMINGS


def test_files_outside_the_digest_come_and_go(bundle: Path) -> None:
    digest = open_bundle(bundle).digest
    for name in ("report.html", "timings.json"):
        (bundle / name).write_bytes(b"{}")
        opened = open_bundle(bundle)
        verify_files(opened)
        assert opened.digest == digest
        assert name in opened.unsealed()


def test_variants_share_one_folder_of_tensors(tmp_path: Path) -> None:
    opened = open_bundle(make_bundle(tmp_path, variants=CPU_VARIANTS))
    verify_files(opened)
    variants = opened.manifest.entry_component.variants
    folders = {opened.tensors_path(variant) for variant in variants}
    assert len(folders) == 1
    folder = folders.pop()
    assert folder is not None
    assert len(list(folder.iterdir())) == 2  # the union: one graph has one of them outside, another has both
    graphs = {opened.model_path("encoder", variant).read_bytes() for variant in variants}
    assert len(graphs) == 2
    assert [variant.requirements.integer for variant in variants] == [item.integer for item in CPU_VARIANTS]


class TestChatTemplate:
    def test_it_is_text(self, tmp_path: Path) -> None:
        assert open_bundle(make_decoder_bundle(tmp_path)).chat_template() == TEMPLATE

    def test_models_may_have_none(self, bundle: Path, tmp_path: Path) -> None:
        assert open_bundle(bundle).chat_template() is None
        assert open_bundle(make_decoder_bundle(tmp_path, chat_template=None)).chat_template() is None

    def test_it_must_be_in_the_bundle(self, tmp_path: Path) -> None:
        made = make_decoder_bundle(tmp_path)
        generation = json.loads((made / "manifest.json").read_text())["additional_metadata"]["edgeonnx"]["generation"]
        missing = generation["chat_template"].replace("chat_template.jinja", "other.jinja")
        edit_json(made, "manifest.json", lambda document: _generation(document).update(chat_template=missing))
        relist(made)
        with pytest.raises(ManifestError, match="does not hold") as caught:
            open_bundle(made)
        assert (caught.value.found or "").endswith("/other.jinja")

    def test_its_size_is_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bundle = open_bundle(make_decoder_bundle(tmp_path))
        monkeypatch.setattr(reader_module, "MAX_TEMPLATE_BYTES", 10)
        with pytest.raises(IntegrityError, match="too large"):
            bundle.chat_template()

    def test_other_bytes_are_no_template(self, tmp_path: Path) -> None:
        made = make_decoder_bundle(tmp_path)
        replace_asset(made, "chat_template.jinja", lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff"))
        with pytest.raises(ManifestError, match="UTF-8"):
            open_bundle(made).chat_template()


def _generation(document: Any) -> Any:
    return document["additional_metadata"]["edgeonnx"]["generation"]
