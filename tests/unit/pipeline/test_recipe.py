"""A request is checked before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeonnx.errors import UsageError
from edgeonnx.pipeline.progress import Silent, StageTimer
from edgeonnx.pipeline.recipe import (
    DECODERS,
    ENCODERS,
    FP32,
    RECIPES,
    STAGES,
    TARGETS,
    Catalogue,
    PackageRequest,
    choose_variants,
    model_path,
    stage_of,
)
from edgeonnx.spec.manifest import Task


def request(**changes: object) -> PackageRequest:
    return PackageRequest(**{"source": "m", "name": "a", "version": "1", "out": Path("out"), **changes})  # type: ignore[arg-type]


def test_the_target_is_name_and_version() -> None:
    assert request(name="minilm", version="1.0.0").target == Path("out/minilm-1.0.0")


@pytest.mark.parametrize(("field", "value"), [("name", "../x"), ("name", "A"), ("version", ""), ("version", "1/2")])
def test_names_that_cannot_be_folders_are_refused(field: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(**{field: value})
    assert caught.value.where == f"--{field}"


@pytest.mark.parametrize("name", [name for name, _ in STAGES])
def test_every_stage_is_described(name: str) -> None:
    assert stage_of(name)[0] == name
    assert len(stage_of(name)[1]) > 20


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []

    def started(self, stage: str, about: str) -> None:
        self.events.append(("started", stage))

    def advanced(self, done: int, total: int) -> None:
        self.events.append(("advanced", f"{done}/{total}"))

    def finished(self, stage: str, result: str, seconds: float) -> None:
        self.events.append(("finished", stage, result))


def test_stages_are_told_in_order_and_timed() -> None:
    timer = StageTimer(progress=Recorder())
    with timer.stage("load", "about") as stage:
        timer.progress.advanced(1, 2)
        stage.result = "done"
    assert timer.progress.events == [("started", "load"), ("advanced", "1/2"), ("finished", "load", "done")]  # type: ignore[attr-defined]
    assert list(timer.seconds) == ["load"]


def test_a_stage_that_fails_is_not_finished() -> None:
    timer = StageTimer(progress=Recorder())
    with pytest.raises(RuntimeError), timer.stage("load", "about"):
        raise RuntimeError
    assert timer.progress.events == [("started", "load")]  # type: ignore[attr-defined]
    assert timer.seconds == {}


def test_silence_takes_every_event() -> None:
    timer = StageTimer(progress=Silent())
    with timer.stage("load", "about"):
        timer.progress.advanced(1, 1)


@pytest.mark.parametrize(
    ("targets", "names", "expected"),
    [
        (("cpu",), (), ("cpu-int8", "cpu-fp32")),
        (("avx2", "cpu"), (), ("cpu-int8", "cpu-int8-avx2", "cpu-fp32")),
        ((), ("cpu-int4-weights",), ("cpu-int4-weights", "cpu-fp32")),
        ((), (), ("cpu-fp32",)),
        (("tensorrt", "tensorrt"), ("cpu-fp32",), ("tensorrt-int8", "tensorrt-fp16", "cpu-fp32")),
    ],
)
def test_variants_are_in_order_of_preference_and_fp32_is_always_there(
    targets: tuple[str, ...], names: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert choose_variants(targets, names) == expected


@pytest.mark.parametrize(("targets", "names"), [(("phone",), ()), ((), ("cpu-int3",))])
def test_unknown_targets_and_variants_are_refused(targets: tuple[str, ...], names: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        choose_variants(targets, names)
    assert caught.value.found == (*targets, *names)[0]


def test_every_target_names_recipes() -> None:
    assert {name for names in TARGETS.values() for name in names} <= set(RECIPES)
    assert all(name == recipe.name for name, recipe in RECIPES.items())
    assert len({model_path(recipe) for recipe in RECIPES.values()}) == len(RECIPES)
    assert list(RECIPES)[-1] == FP32.name


def test_only_seven_bits_are_safe_without_vnni() -> None:
    limits = {name: recipe.integer.weight_max for name, recipe in RECIPES.items() if recipe.integer is not None}
    assert limits["cpu-int8"] == 127
    assert limits["cpu-int8-avx2"] == 64


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(UsageError):
        PackageRequest(source="m", name="a", version="1", out=Path("out"), search_seconds=-1)


def test_what_is_built_hangs_on_the_task() -> None:
    wanted = request()
    assert [recipe.name for recipe in wanted.recipes(Task.EMBEDDING)] == ["cpu-int8", "cpu-fp32"]
    assert [recipe.name for recipe in wanted.recipes(Task.TEXT_GENERATION)] == ["cpu-int4", "cpu-int8", "cpu-fp32"]
    assert wanted.recipes(Task.EMBEDDING)[0].scheme is not wanted.recipes(Task.TEXT_GENERATION)[1].scheme


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"cpu-int4"}),
        ({"targets": ("cpu", "cuda")}, {"cpu-int4"}),
        ({"variants": ("cpu-int8",)}, {"cpu-int4"}),
        ({"variants": ("cpu-int4",)}, set()),
        ({"targets": ("cpu",), "variants": ("cpu-int4",)}, set()),
    ],
)
def test_a_variant_that_the_user_named_must_pass(changes: dict[str, tuple[str, ...]], expected: set[str]) -> None:
    asked = request(**changes)
    assert asked.optional(Task.TEXT_GENERATION) == expected
    assert asked.optional(Task.EMBEDDING) == set()


def test_named_variants_replace_the_default_target_and_join_a_named_one() -> None:
    alone, both = request(variants=("cpu-int8",)), request(variants=("cpu-int8",), targets=("cuda",))
    assert [recipe.name for recipe in alone.recipes(Task.TEXT_GENERATION)] == ["cpu-int8", "cpu-fp32"]
    assert [recipe.name for recipe in both.recipes(Task.TEXT_GENERATION)] == ["cuda-fp16", "cpu-int8", "cpu-fp32"]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"targets": ("phone",)}, "phone"),
        ({"variants": ("cpu-int3",)}, "cpu-int3"),
        ({"task": Task.TEXT_GENERATION, "targets": ("tensorrt",)}, "tensorrt"),
        ({"task": Task.EMBEDDING, "variants": ("cpu-int4",)}, "cpu-int4"),
    ],
)
def test_what_no_model_of_the_task_has_is_refused_at_once(changes: dict[str, object], found: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(**changes)
    assert caught.value.found == found


def test_what_only_other_models_have_is_refused_when_the_task_is_known() -> None:
    wanted = request(variants=("cpu-int4",))
    assert wanted.recipes(Task.TEXT_GENERATION)[0].name == "cpu-int4"
    with pytest.raises(UsageError, match="no such variant"):
        wanted.recipes(Task.EMBEDDING)


@pytest.mark.parametrize("catalogue", [ENCODERS, DECODERS], ids=["encoders", "decoders"])
def test_every_catalogue_is_whole(catalogue: Catalogue) -> None:
    assert {name for names in catalogue.targets.values() for name in names} <= set(catalogue.recipes)
    assert all(name == recipe.name for name, recipe in catalogue.recipes.items())
    assert len({catalogue.path(recipe) for recipe in catalogue.recipes.values()}) == len(catalogue.recipes)
    assert list(catalogue.recipes)[-1] == FP32.name
    assert [name for name, _ in catalogue.stages] == [name for name, _ in STAGES]
