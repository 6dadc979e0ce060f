from __future__ import annotations

from device_agent.inference.devices.assignment import Assignment

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def test_nodes_are_counted_by_provider_and_operator() -> None:
    found = Assignment.count([(CUDA, "MatMul"), (CPU, "Shape"), (CUDA, "MatMul"), (CUDA, "Add")])
    assert found.nodes == {CUDA: 3, CPU: 1}
    assert found.total == 4
    assert found.share(CUDA) == 0.75
    assert found.share("OpenVINOExecutionProvider") == 0.0
    assert found.as_dict() == {
        CUDA: {"nodes": 3, "share": 0.75, "operators": {"MatMul": 2, "Add": 1}},
        CPU: {"nodes": 1, "share": 0.25, "operators": {"Shape": 1}},
    }
    assert str(found) == "4 nodes: 3 on CUDA (75.0 %), 1 on CPU (25.0 %)"


def test_a_runtime_that_keeps_no_record() -> None:
    assert str(Assignment()) == "not recorded"
    assert Assignment().share(CPU) == 0.0
    assert Assignment().as_dict() == {}
