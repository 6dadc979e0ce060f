"""schemathesis reads the agent's OpenAPI document and attacks a real agent with what it allows and what it forbids.

No request may end in a status 5xx, with a status that the document does not name, or with an answer of another form
than it says; and no body that breaks the document may be answered with a result.

The suite makes a few requests for each operation. The long form, with EDGEONNX_FUZZ_EXAMPLES=200 in the environment,
makes that many, tries every boundary of the document, and attacks also the operations that are like others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from device_agent.api.schema.document import openapi_json
from device_agent.config import AgentConfig, Limits
from edgeonnx.spec.manifest import Task
from tests.support import bundles, decoders
from tests.support.agent import Agent

LONG = "EDGEONNX_FUZZ_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("EDGEONNX_FUZZ_EXAMPLES", "5"))
LIKE_OTHERS = r"/versions/|/predict|/trace/|/logging|sharedmemory"
MODELS = {
    "tiny": Task.EMBEDDING,
    "ranker": Task.TEXT_RANKING,
    "classifier": Task.TEXT_CLASSIFICATION,
    "tagger": Task.TOKEN_CLASSIFICATION,
}
GENERATOR = "tiny-lm"
FITTING = {
    "/rerank": "ranker",
    "/classify": "classifier",
    "/predict": "classifier",
    "/v1/chat/completions": GENERATOR,
    "/v1/completions": GENERATOR,
}
LIMITS = {"max_texts": 8, "max_text_characters": 40, "max_json_numbers": 64}
"""Small ones, so that requests beyond them are small too."""
DOCUMENT = json.loads(openapi_json(AgentConfig(limits=Limits(**LIMITS))))


def load() -> Any:
    """The document's operations. Too large is refused as well as wrong, so every 4xx counts."""
    config = {
        "checks": {"negative_data_rejection": {"expected-statuses": ["4xx"]}},
        "phases": {"coverage": {"enabled": LONG}},
    }
    found = schemathesis.openapi.from_dict(DOCUMENT, config=schemathesis.Config.from_dict(config))
    return found if LONG else found.exclude(path_regex=LIKE_OTHERS)


schema = load()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("schemathesis")
    first, *others = (bundles.make_bundle(folder, task, name=name) for name, task in MODELS.items())
    others.append(decoders.make_decoder_bundle(folder, name=GENERATOR))
    limits = folder / "agent.toml"
    limits.write_text("[limits]\n" + "".join(f"{name} = {value}\n" for name, value in LIMITS.items()))
    more = ["--config", str(limits)] + [argument for bundle in others for argument in ("--bundle", str(bundle))]
    with Agent(bundle=first, arguments=tuple(more)) as running:
        yield running


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as open_session:
        yield open_session


def aim(case: schemathesis.Case) -> None:
    """Name models that there are, or nearly every request would end at an unknown one; one in four keeps its own.

    So do load and unload: without a model the other requests would find nothing.
    """
    if len(str(case.body)) % 4 == 0 or case.path.startswith("/v2/repository/models"):
        return
    for name, value in (("name", "tiny"), ("id", "tiny"), ("version", "1.0.0")):
        if case.path_parameters and isinstance(case.path_parameters.get(name), str):
            case.path_parameters[name] = value
    body: Any = case.body
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body["model"] = FITTING.get(case.path, "tiny")


@schema.parametrize()
@settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_agent_keeps_its_document(case: schemathesis.Case, agent: Agent, session: requests.Session) -> None:
    aim(case)
    # A request of the right form may still be wrong: token ids that the model does not have, too many dimensions.
    case.call_and_validate(base_url=agent.url, session=session, excluded_checks=[positive_data_acceptance])


def test_the_agent_is_as_it_was(agent: Agent, session: requests.Session) -> None:
    """Runs last in this file: nothing was unloaded, nothing failed, and a good request is answered."""
    names = [model["id"] for model in session.get(f"{agent.url}/v1/models", timeout=5).json()["data"]]
    assert names == [*MODELS, GENERATOR]
    assert session.get(f"{agent.url}/openapi.json", timeout=5).json() == DOCUMENT
    good = session.post(f"{agent.url}/embed", json={"inputs": "the cat"}, timeout=5)
    assert good.status_code == 200
    assert "Traceback" not in agent.log
