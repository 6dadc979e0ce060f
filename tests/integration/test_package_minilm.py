"""The real all-MiniLM-L6-v2: right answers, the same bytes every time, and a bundle that ONNX Runtime opens alone."""

from __future__ import annotations

import getpass
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from edgeonnx.pipeline.texts import shipped_texts
from tests.support.cli import command, environment
from tests.support.packaged import open_packaged
from tests.support.texts import vader_texts

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4
FP32 = "cpu-fp32"
UNSEALED = ("report.html", "timings.json")
"""They hold how fast this machine is, which no build repeats."""
EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
ROOT = Path(__file__).resolve().parents[2]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _assets(bundle: Path) -> list[Path]:
    return sorted((bundle / "shared_assets").iterdir())


def _tensor_folder(bundle: Path) -> Path:
    variant = json.loads((bundle / "encoder" / "component.json").read_text())["variants"][FP32]
    reference = variant["executor_info"]["ort"]["session_options"][EXTERNAL_FOLDER]
    return bundle / "shared_assets" / reference.replace(":", "-")


@pytest.fixture(scope="module")
def rebuilt(minilm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model from another place, built in another folder, process, working directory and environment."""
    place = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(minilm_dir, place / minilm_dir.name)
    run = command("package", minilm_dir.name, "--name", "minilm", "--version", "1.0.0", "--out", "deep/er")
    variables = environment(PYTHONHASHSEED="4711", TZ="Pacific/Auckland", LC_ALL="C", HOME=str(place))
    done = subprocess.run(run, capture_output=True, text=True, env=variables, cwd=place, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    return place / "deep" / "er" / "minilm-1.0.0"


class TestAnswers:
    @pytest.mark.parametrize("batch", [1, 9])
    def test_they_are_those_of_sentence_transformers(self, minilm_dir: Path, minilm_bundle: Path, batch: int) -> None:
        from sentence_transformers import SentenceTransformer

        texts = [*shipped_texts(), *vader_texts()[:20000:100]]
        expected = SentenceTransformer(str(minilm_dir), device="cpu").encode(texts)
        found = np.stack(open_packaged(minilm_bundle, FP32).answer(texts, batch=batch)["sentence_embedding"])
        assert found.shape == (len(texts), 384)
        assert len(texts) > 300
        assert np.abs(found - expected).max() < TOLERANCE

    def test_similar_texts_are_similar(self, minilm_bundle: Path) -> None:
        texts = ["A man is eating food.", "A man eats something.", "The stock market fell sharply."]
        first, same, other = open_packaged(minilm_bundle, FP32).answer(texts)["sentence_embedding"]
        assert first @ same > 0.7 > 0.3 > first @ other


class TestReproducibility:
    def test_two_builds_give_the_same_bytes(self, minilm_bundle: Path, rebuilt: Path) -> None:
        first, second = _files(minilm_bundle), _files(rebuilt)
        assert list(first) == list(second)
        assert set(UNSEALED) <= set(first)
        assert [name for name in first if first[name] != second[name] and name not in UNSEALED] == []

    def test_nothing_of_the_build_machine_is_in_it(self, minilm_dir: Path, minilm_bundle: Path, rebuilt: Path) -> None:
        paths = {minilm_dir, minilm_bundle.parent, rebuilt.parent, ROOT, Path(sys.prefix), Path(tempfile.gettempdir())}
        needles = {str(path) for path in paths} | {"site-packages", "stack_trace", "Traceback ("}
        needles |= {f"/home/{getpass.getuser()}", f"/{getpass.getuser()}/", 'File "', "pkg.torch"}
        for folder in (minilm_bundle, rebuilt):
            for name, data in _files(folder).items():
                assert [needle for needle in needles if needle.encode() in data] == [], name

    @pytest.mark.filterwarnings("ignore")
    def test_the_needles_are_found_where_they_are(self, minilm_dir: Path) -> None:
        """The search above can fail: an export as the tools leave it carries such traces."""
        import torch

        program = torch.onnx.export(torch.nn.Linear(2, 2).eval(), (torch.zeros(1, 2),), dynamo=True, verbose=False)
        assert program is not None
        assert b"pkg.torch" in program.model_proto.SerializeToString()


class TestPlainOnnxRuntime:
    """What a user without edgeonnx does with a bundle."""

    def test_the_package_api_lists_it(self, minilm_bundle: Path) -> None:
        context = onnxruntime.ModelPackageContext(str(minilm_bundle))
        assert context.get_schema_version() == 1
        assert context.get_component_names() == ["encoder"]
        assert sorted(context.get_variant_names("encoder")) == [FP32, "cpu-int8"]
        for name in ("cpu-int8", FP32):
            assert context.get_variant_ep_name("encoder", name) == "CPUExecutionProvider"

    def test_the_strict_reader_of_packages_accepts_every_field(self, minilm_bundle: Path) -> None:
        package = onnxruntime.ModelPackage.open(str(minilm_bundle), follow_symlinks=False, strict_unknown_fields=True)
        try:
            info = package.get_info()
        finally:
            package.close()
        assert json.dumps(info, default=str).count("minilm") >= 1

    def test_the_package_api_runs_it(self, minilm_bundle: Path) -> None:
        context = onnxruntime.ModelPackageContext(str(minilm_bundle))
        options = onnxruntime.ModelPackageOptions(onnxruntime.SessionOptions())
        selected = context.select_component("encoder", options)
        # It knows nothing of our preference: of variants that one provider runs, it takes the first by name.
        assert selected.get_selected_variant_name() == FP32
        ours = open_packaged(minilm_bundle, FP32)
        inputs = ours.tokenize(list(shipped_texts()[:5]))
        found = selected.create_session().run(None, inputs)[0]
        np.testing.assert_array_equal(found, ours.run(inputs)["sentence_embedding"])

    def test_a_plain_session_runs_it_in_a_process_without_edgeonnx(self, minilm_bundle: Path) -> None:
        script = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.add_session_config_entry(sys.argv[1], sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[3], options)
ids = numpy.array([[101, 7592, 102, 0], [101, 7592, 2088, 102]])
feeds = {"input_ids": ids, "attention_mask": (ids != 0).astype(ids.dtype), "token_type_ids": ids * 0}
vectors = session.run(None, feeds)[0]
assert vectors.shape == (2, 384) and abs(numpy.linalg.norm(vectors, axis=1) - 1).max() < 1e-5
assert not any(name.split(".")[0] in ("edgeonnx", "edgeonnx_ext", "torch") for name in sys.modules)
"""
        model = minilm_bundle / "encoder" / FP32 / "model.onnx"
        arguments = [EXTERNAL_FOLDER, str(_tensor_folder(minilm_bundle)), str(model)]
        run = [sys.executable, "-I", "-c", script, *arguments]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


class TestContentAddresses:
    def test_a_folder_is_named_as_onnx_runtime_names_it(self, minilm_bundle: Path) -> None:
        assets = _assets(minilm_bundle)
        assert len(assets) == 3
        for folder in assets:
            # The format's own hash of a directory, in the library's own spelling.
            assert onnxruntime.ModelPackage.compute_directory_hash(str(folder)).endswith(folder.name.split("-", 1)[1])

    def test_a_tensor_is_one_file_named_by_its_sha256(self, minilm_bundle: Path) -> None:
        files = _files(_tensor_folder(minilm_bundle))
        assert len(files) > 90
        assert all(hashlib.sha256(data).hexdigest() == name for name, data in files.items())
        assert sum(map(len, files.values())) > 80e6

    def test_the_graph_itself_is_small(self, minilm_bundle: Path) -> None:
        assert (minilm_bundle / "encoder" / FP32 / "model.onnx").stat().st_size < 500_000
