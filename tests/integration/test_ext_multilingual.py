"""Real texts in many languages: the compiled tokenizers against the `tokenizers` library, ids and offsets."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from tests.fuzz.compare import mismatches, open_kernel
from tests.fuzz.documents import large_documents
from tests.support.texts import fortune_texts

SHARE = 20  # every twentieth of 100,000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fortunes() -> list[str]:
    texts = fortune_texts()
    if not texts:
        pytest.skip("no fortunes at hand: apt-get install fortunes fortunes-de fortunes-ru fortunes-zh and others")
    return texts[::SHARE]


def test_the_fortunes_are_in_many_scripts(fortunes: list[str]) -> None:
    letters = set("".join(fortunes))
    assert {"a", "ß", "ř", "ж", "的"} <= letters


@pytest.mark.parametrize("name", ["minilm", "smollm2", "gpt2", "llama3"])
def test_ids_and_offsets_are_those_of_the_library(name: str, fortunes: list[str]) -> None:
    data = large_documents()[name]
    library = Tokenizer.from_str(data.decode())
    library.no_padding()
    library.no_truncation()
    wrong = mismatches(open_kernel(data), library, fortunes)
    assert [fortunes[row] for row in wrong[:3]] == []
