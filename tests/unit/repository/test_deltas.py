from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeonnx.blobs.codec import compress
from edgeonnx.blobs.delta import decode
from edgeonnx.bundle import Bundle, open_bundle
from edgeonnx.errors import BlobError
from edgeonnx.repository.content import deltas
from edgeonnx.repository.content.deltas import plan_deltas
from edgeonnx.spec.contents import CONTENTS_FILE, Contents
from edgeonnx.spec.release import Delta
from tests.support import bundles

RNG = np.random.default_rng(3)
WORDS = 500


@pytest.fixture(autouse=True)
def larger_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models with a table of words that is worth a delta; the golden set uses the first rows only."""
    small = bundles.weights

    def weights(seed: int = bundles.SEED) -> dict[str, np.ndarray]:
        table = small(bundles.SEED)
        rows = np.random.default_rng(1).standard_normal((WORDS, bundles.DIM)).astype(np.float32)
        rows[: len(table["words"])] = table["words"]
        moved = np.random.default_rng(seed).standard_normal(rows.shape) * (0 if seed == bundles.SEED else 1e-5)
        return {**table, "words": (rows + moved).astype(np.float32)}

    monkeypatch.setattr(bundles, "weights", weights)


def made(folder: Path, version: str, **how: object) -> Bundle:
    return open_bundle(bundles.make_bundle(folder, version=version, **how))  # type: ignore[arg-type]


def reader(bundle: Bundle) -> Callable[[str], bytes]:
    paths = {entry.sha256: bundle.root / entry.path for entry in bundle.contents.files}
    return lambda digest: paths[digest].read_bytes()


def planned(new: Bundle, base: Bundle, **how: object) -> list[tuple[Delta, bytes]]:
    return plan_deltas(new, base.contents, reader(base), **how)  # type: ignore[arg-type]


def digest_of(bundle: Bundle, name: str) -> str:
    return next(entry.sha256 for entry in bundle.contents.files if entry.path.endswith(name))


def words_of(bundle: Bundle) -> str:
    return max(bundle.contents.files, key=lambda entry: (entry.size == WORDS * bundles.DIM * 4, entry.size)).sha256


def test_a_moved_tensor_becomes_a_delta_that_decodes_to_it(tmp_path: Path) -> None:
    old, new = made(tmp_path, "1.0.0"), made(tmp_path, "1.1.0", seed=5)
    found = {delta.target: (delta, data) for delta, data in planned(new, old)}
    delta, data = found[words_of(new)]
    assert (delta.base, delta.encoding, delta.size) == (words_of(old), "planes4", len(data))
    content = b"".join(decode("planes4", [data], reader(old)(delta.base), size=WORDS * bundles.DIM * 4))
    assert hashlib.sha256(content).hexdigest() == delta.target


def test_the_list_of_files_comes_first_and_refers_to_the_earlier_list(tmp_path: Path) -> None:
    variants = bundles.CPU_VARIANTS
    old, new = made(tmp_path, "1.0.0", variants=variants), made(tmp_path, "1.1.0", seed=5, variants=variants)
    first, data = planned(new, old)[0]
    assert (first.target, first.base, first.encoding) == (new.digest, old.digest, "dictionary")
    before, after = ((each.root / CONTENTS_FILE).read_bytes() for each in (old, new))
    assert b"".join(decode("dictionary", [data], before, size=len(after))) == after


def test_equal_bundles_have_no_deltas(tmp_path: Path) -> None:
    old = made(tmp_path, "1.0.0")
    assert planned(old, old) == []


def test_contents_that_are_the_same_are_left_out(tmp_path: Path) -> None:
    old, new = made(tmp_path, "1.0.0"), made(tmp_path, "1.1.0", seed=5)
    before = {entry.sha256 for entry in old.contents.files}
    targets = [delta.target for delta, _ in planned(new, old)]
    assert len(targets) == len(set(targets))
    assert not before & set(targets)


def test_the_same_input_gives_the_same_deltas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = made(tmp_path, "1.0.0"), made(tmp_path, "1.1.0", seed=5)
    once = planned(new, old)
    monkeypatch.setattr(deltas, "SMALL_BYTES", 0)  # one after the other
    assert planned(new, old) == once


def test_a_delta_must_save_enough(tmp_path: Path) -> None:
    old, new = made(tmp_path, "1.0.0"), made(tmp_path, "1.1.0", seed=5)
    size = next(delta.size for delta, _ in planned(new, old) if delta.target == words_of(new))
    least = max(deltas.MIN_SAVED_BYTES, size * deltas.MIN_SAVED_SHARE / (1 - deltas.MIN_SAVED_SHARE))
    for full, kept in ((size + int(least) + 2, True), (size + int(least) - 2, False), (size, False)):
        found = planned(new, old, full_size=lambda digest, full=full: full)
        assert any(delta.target == words_of(new) for delta, _ in found) is kept
    saved = {delta.target: delta.size for delta, _ in planned(new, old)}
    sizes = {entry.sha256: (new.root / entry.path).read_bytes() for entry in new.contents.files}
    for target in saved.keys() & sizes.keys():
        assert saved[target] <= len(compress(sizes[target])) - deltas.MIN_SAVED_BYTES


def test_a_tensor_is_found_in_a_variant_of_another_name(tmp_path: Path) -> None:
    old = made(tmp_path, "1.0.0", variants=(bundles.TinyVariant(precision="int8"),))
    new = made(tmp_path, "1.1.0", seed=5, variants=(bundles.TinyVariant(precision="int8-other"),))
    found = {delta.target: delta for delta, _ in planned(new, old)}
    assert found[words_of(new)].base == words_of(old)


def test_a_table_with_further_rows_takes_the_old_one_as_its_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = made(tmp_path, "1.0.0")
    shorter = bundles.weights()
    longer = {**shorter, "words": np.concatenate([shorter["words"], shorter["words"][:3] + 1])}
    monkeypatch.setattr(bundles, "weights", lambda seed: longer)
    new = made(tmp_path, "1.1.0")
    target = next(each.sha256 for each in new.contents.files if each.size == (WORDS + 3) * bundles.DIM * 4)
    found = {delta.target: delta for delta, _ in planned(new, old)}
    assert (found[target].base, found[target].encoding) == (words_of(old), "dictionary")
    assert found[target].size < 1000


def test_files_of_assets_are_found_although_their_folders_have_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = made(tmp_path, "1.0.0")
    before = bundles.tokenizer_json()
    monkeypatch.setattr(bundles, "tokenizer_json", lambda: before.replace(b'"film"', b'"movie"'))
    monkeypatch.setattr(deltas, "MIN_SAVED_BYTES", 0)
    new = made(tmp_path, "1.1.0")
    found = {delta.target: delta for delta, _ in planned(new, old)}
    assert found[digest_of(new, "tokenizer.json")].base == digest_of(old, "tokenizer.json")
    assert digest_of(new, "tokenizer.json") != digest_of(old, "tokenizer.json")


def test_a_base_whose_metadata_cannot_be_read_gives_deltas_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deltas, "MIN_SAVED_BYTES", 0)
    old, new = made(tmp_path, "1.0.0"), made(tmp_path, "1.1.0", seed=5)
    read = reader(old)
    manifest = digest_of(old, "manifest.json")
    found = plan_deltas(new, old.contents, lambda digest: b"{}" if digest == manifest else read(digest))
    targets = {delta.target for delta, _ in found}
    assert digest_of(new, "model.onnx") in targets
    assert words_of(new) not in targets


@pytest.mark.parametrize("graph", [b"", b"\xff\xff no protobuf"])
def test_a_base_whose_graph_is_none_gives_no_delta_of_tensors(tmp_path: Path, graph: bytes) -> None:
    old, new = made(tmp_path, "1.0.0"), made(tmp_path, "1.1.0", seed=5)
    read = reader(old)
    model = digest_of(old, "model.onnx")
    found = plan_deltas(new, old.contents, lambda digest: graph if digest == model else read(digest))
    assert words_of(new) not in {delta.target for delta, _ in found}


def test_an_earlier_list_that_was_made_here_has_its_bytes_too(tmp_path: Path) -> None:
    old, new = made(tmp_path, "1.0.0"), made(tmp_path, "1.1.0", seed=5)
    again = Contents.of(old.contents.files)
    assert again.source is None
    assert plan_deltas(new, again, reader(old)) == planned(new, old)


def test_a_delta_that_does_not_decode_is_never_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = made(tmp_path, "1.0.0"), made(tmp_path, "1.1.0", seed=5)
    monkeypatch.setattr(deltas, "encode", lambda encoding, base, target: compress(bytes(len(target))))
    with pytest.raises(BlobError, match="does not decode to what it was made from"):
        planned(new, old)


def test_what_is_too_large_travels_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = made(tmp_path, "1.0.0"), made(tmp_path, "1.1.0", seed=5)
    monkeypatch.setattr(deltas, "MAX_BASE_BYTES", WORDS * bundles.DIM * 4 - 1)
    assert words_of(new) not in {delta.target for delta, _ in planned(new, old)}
