"""`verify` and `inspect` as functions: good bundles, and bundles that are wrong although every byte is listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgeonnx.bundle.golden import GoldenSet
from edgeonnx.errors import EdgeOnnxError, GoldenSetError, ManifestError, NotABundleError, ValidationError
from edgeonnx.pipeline.inspect import inspect
from edgeonnx.pipeline.verify import verify
from edgeonnx.spec.manifest import Task
from tests.support.bundles import OUTPUTS, make_bundle
from tests.support.decoders import make_decoder_bundle
from tests.support.tamper import edit_json, relist, replace_asset


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path, Task.TEXT_CLASSIFICATION)


@pytest.mark.parametrize("task", OUTPUTS, ids=lambda task: task.value)
def test_a_good_bundle_of_every_task_passes(tmp_path: Path, task: Task) -> None:
    report = verify(make_bundle(tmp_path, task))
    assert [item.variant for item in report.replays] == ["cpu-fp32"]
    assert report.replays[0].comparison.scaled_diff < 1e-4
    assert report.text_path.startswith("wordpiece")
    assert report.files == len(report.bundle.contents.files)
    assert list(report.seconds) == ["structure", "bytes", "tokens", "golden"]
    json.dumps(report.to_dict(), allow_nan=False)


def test_a_variant_for_other_hardware_is_skipped_and_said(tmp_path: Path) -> None:
    report = verify(make_bundle(tmp_path, providers=("CUDAExecutionProvider", "CPUExecutionProvider")))
    assert report.skipped == (("cuda-fp32", "needs CUDAExecutionProvider"),)
    assert [item.variant for item in report.replays] == ["cpu-fp32"]


def test_a_model_that_does_not_give_its_golden_answers_fails(tmp_path: Path) -> None:
    with pytest.raises(GoldenSetError) as caught:
        verify(make_bundle(tmp_path, bias=0.5))
    assert caught.value.where == "encoder/cpu-fp32"


def test_a_tokenizer_that_does_not_give_the_golden_ids_fails(bundle: Path) -> None:
    def swap(folder: Path) -> None:
        file = folder / "tokenizer.json"
        document = json.loads(file.read_text())
        vocabulary = document["model"]["vocab"]
        vocabulary["cat"], vocabulary["dog"] = vocabulary["dog"], vocabulary["cat"]
        file.write_text(json.dumps(document))

    replace_asset(bundle, "tokenizer.json", swap)
    with pytest.raises(GoldenSetError, match="gives other input_ids") as caught:
        verify(bundle)
    assert "the cat sat" in (caught.value.where or "")


def test_a_file_that_is_no_tokenizer_fails(bundle: Path) -> None:
    replace_asset(bundle, "tokenizer.json", lambda folder: (folder / "tokenizer.json").write_text("[]") and None)
    with pytest.raises(GoldenSetError, match="cannot be tokenized") as caught:
        verify(bundle)
    assert caught.value.found


def change_golden(folder: Path, change: object) -> None:
    golden = GoldenSet.from_files(lambda name: (folder / name).read_bytes())
    change(golden)  # type: ignore[operator]
    for file in folder.iterdir():
        file.unlink()
    for name, data in golden.to_files().items():
        (folder / name).write_bytes(data)


def test_a_golden_set_that_leaves_an_output_out_fails(bundle: Path) -> None:
    replace_asset(bundle, "golden.json", lambda folder: change_golden(folder, lambda g: g.outputs.pop("scores")))
    with pytest.raises(ManifestError, match="has other outputs than the component's signature"):
        verify(bundle)


def test_golden_answers_that_are_not_numbers_fail(bundle: Path) -> None:
    def spoil(golden: GoldenSet) -> None:
        golden.outputs["logits"] = np.full_like(golden.outputs["logits"], np.nan)

    replace_asset(bundle, "golden.json", lambda folder: change_golden(folder, spoil))
    with pytest.raises(GoldenSetError):
        verify(bundle)


def replace_graph(bundle: Path, change: object) -> None:
    file = bundle / "encoder/cpu-fp32/model.onnx"
    model = onnx.ModelProto.FromString(file.read_bytes())
    change(model)  # type: ignore[operator]
    file.write_bytes(model.SerializeToString())
    relist(bundle)


def test_a_graph_with_other_outputs_than_promised_fails(bundle: Path) -> None:
    replace_graph(bundle, lambda model: model.graph.output.pop())
    with pytest.raises(ValidationError, match="has other outputs"):
        verify(bundle)


def test_a_graph_that_onnx_runtime_does_not_load_fails(bundle: Path) -> None:
    def unknown(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "Nonsense"

    replace_graph(bundle, unknown)
    with pytest.raises(ValidationError, match="does not load the graph") as caught:
        verify(bundle)
    assert "Nonsense" in (caught.value.found or "")


def test_a_padding_id_beyond_the_table_fails_and_is_no_crash(bundle: Path) -> None:
    def change(document: dict[str, dict[str, dict[str, dict[str, int]]]]) -> None:
        document["additional_metadata"]["edgeonnx"]["processing"]["pad_id"] = 999

    edit_json(bundle, "manifest.json", change)
    relist(bundle)
    with pytest.raises(EdgeOnnxError):
        verify(bundle)


def test_inspect_tells_what_a_bundle_holds(bundle: Path) -> None:
    found = inspect(bundle)
    assert list(found.graphs) == ["encoder/cpu-fp32"]
    document = json.loads(json.dumps(found.to_dict()))
    assert document["manifest"]["package_name"] == "tiny"
    assert document["components"]["encoder"]["variants"]["cpu-fp32"]
    assert document["digest"] == found.bundle.digest if found.bundle else False


def test_inspect_reads_a_single_graph(bundle: Path) -> None:
    found = inspect(bundle / "encoder/cpu-fp32/model.onnx")
    assert list(found.graphs) == ["model.onnx"]
    assert found.bundle is None
    assert set(found.to_dict()) == {"path", "graphs"}


def test_inspect_says_that_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotABundleError, match="no such file or folder") as caught:
        inspect(tmp_path / "x")
    assert caught.value.where == str(tmp_path / "x")


class TestDecoders:
    @pytest.mark.parametrize("half", [False, True])
    def test_a_good_one_passes(self, tmp_path: Path, half: bool) -> None:
        report = verify(make_decoder_bundle(tmp_path, half=half))
        assert report.replays[0].component == "decoder"
        assert report.replays[0].comparison.scaled_diff < 1e-4
        assert report.text_path.startswith("bpe")

    def test_other_answers_fail(self, tmp_path: Path) -> None:
        with pytest.raises(GoldenSetError) as caught:
            verify(make_decoder_bundle(tmp_path, golden_error=0.5))
        assert caught.value.where == "decoder/cpu-fp32"

    def test_a_gpu_s_variant_is_skipped(self, tmp_path: Path) -> None:
        providers = ("CUDAExecutionProvider", "CPUExecutionProvider")
        report = verify(make_decoder_bundle(tmp_path, providers=providers))
        assert report.skipped == (("cuda-fp32", "needs CUDAExecutionProvider"),)

    @pytest.mark.parametrize("layers", [1, 3])
    def test_caches_that_the_graph_has_not_are_refused(self, tmp_path: Path, layers: int) -> None:
        bundle = make_decoder_bundle(tmp_path)

        def change(document: Any) -> None:
            document["additional_metadata"]["edgeonnx"]["generation"]["cache"]["layers"] = layers

        edit_json(bundle, "manifest.json", change)
        relist(bundle)
        with pytest.raises(ValidationError, match="other inputs"):
            verify(bundle)

    def test_inspection_has_the_caches(self, tmp_path: Path) -> None:
        facts = inspect(make_decoder_bundle(tmp_path)).graphs["decoder/cpu-fp32"]
        assert "past_key_values.1.value" in [name for name, _, _ in facts.inputs]
