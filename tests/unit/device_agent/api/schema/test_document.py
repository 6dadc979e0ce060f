from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from device_agent.api.app import ROUTES
from device_agent.api.edge.errors import INTERNAL, KINDS
from device_agent.api.schema.document import openapi_json
from device_agent.config import AgentConfig, Limits, SecurityConfig

HTTP_STATUSES = {kind.status for kind in KINDS.values()} | {INTERNAL.status}


@cache
def document(config: AgentConfig = AgentConfig()) -> dict[str, Any]:  # noqa: B008 - it is frozen
    return json.loads(openapi_json(config))


def operations(config: AgentConfig = AgentConfig()) -> dict[tuple[str, str], dict[str, Any]]:  # noqa: B008
    paths = document(config)["paths"]
    return {(method.upper(), path): found for path, methods in paths.items() for method, found in methods.items()}


def test_every_route_is_described_and_nothing_else() -> None:
    served = {(method, re.sub(r":\w+}", "}", path)) for method, path, _ in ROUTES}
    assert set(operations()) == served


def test_every_status_of_the_error_table_is_described_and_no_other() -> None:
    found = {int(status) for operation in operations().values() for status in operation["responses"]}
    assert found == HTTP_STATUSES | {200}


def test_errors_have_the_form_of_their_protocol() -> None:
    names = set()
    for (_, path), operation in operations().items():
        for status, answer in operation["responses"].items():
            if status != "200":
                ((media, content),) = answer["content"].items()
                assert media == "application/json"
                names.add((path.split("/")[1], content["schema"]["$ref"].rsplit("/", 1)[1]))
    assert {name for folder, name in names if folder == "v1"} == {"OpenAIError"}
    assert {name for folder, name in names if folder == "v2"} == {"InferenceProtocolError"}
    assert ("rerank", "TeiError") in names


def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for operation in operations().values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"\w+", name) for name in names)


def test_no_reference_leads_nowhere() -> None:
    text = json.dumps(document())
    schemas = document()["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) == set(schemas)


def test_limits_are_those_of_the_configuration() -> None:
    limits = Limits(max_texts=3, max_text_characters=77, max_body_bytes=12_345)
    found = document(AgentConfig(limits=limits))
    texts = found["components"]["schemas"]["RerankRequest"]["properties"]["texts"]
    assert texts["maxItems"] == 3
    assert texts["items"]["maxLength"] == 77
    assert "12,345 bytes" in found["info"]["description"]


def test_without_tokens_nothing_is_secured() -> None:
    assert "securitySchemes" not in document()["components"]


@pytest.mark.parametrize("open_metrics", [True, False])
def test_tokens_secure_what_they_are_for(open_metrics: bool) -> None:
    files = {"token_file": Path("tokens"), "admin_token_file": Path("admins")}
    found = operations(AgentConfig(security=SecurityConfig(open_metrics=open_metrics, **files)))
    assert found["POST", "/v1/embeddings"]["security"] == [{"token": []}]
    assert found["POST", "/v2/repository/models/{name}/load"]["security"] == [{"adminToken": []}]
    assert "security" not in found["GET", "/v2/health/live"]
    assert ("security" in found["GET", "/metrics"]) is not open_metrics


def test_the_agent_imports_it_only_when_it_is_asked_for() -> None:
    code = "import sys, device_agent.api.app; print('fastapi' in sys.modules, 'pydantic' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "False"]


def test_the_document_is_served(connect) -> None:
    client = connect(max_texts=5)
    assert client.get("/openapi.json").json() == document(AgentConfig(limits=Limits(max_texts=5)))


API = (Path(__file__).parents[5] / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_documentation_has_the_error_table() -> None:
    rows = re.findall(r"^\| (\d{3}) \| .+? \| (?:`(\w+)`)? ?\| `(\w+)` \|$", API, re.MULTILINE)
    documented = {(int(status), code, word) for status, code, word in rows}
    kinds = {(kind.status, kind.openai_code or "", kind.tei_type) for kind in KINDS.values()}
    # One status stands for several kinds of error where a model cannot be loaded; one code of it is enough.
    assert documented <= kinds
    assert {status for status, _, _ in documented} == HTTP_STATUSES


def test_the_documentation_has_the_limits() -> None:
    documented = dict(re.findall(r"^\| `(max_\w+)` \| ([\d,]+|8 MiB) \|", API, re.MULTILINE))
    limits = {field.name: getattr(Limits(), field.name) for field in fields(Limits)}
    numbers = {name: 8 << 20 if text == "8 MiB" else int(text.replace(",", "")) for name, text in documented.items()}
    assert numbers == {name: value for name, value in limits.items() if name != "max_header_bytes"}
