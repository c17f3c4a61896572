"""Whatever the OpenAPI document allows is answered as it says: no 500, no undocumented form."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from headstart.service.app import create_app

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
# No document can say which rows, features and metadata a model knows: what it does not know is refused.
DEPENDS_ON_DATA = [checks.positive_data_acceptance]


@pytest.fixture(scope="module")
def api(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> object:
    place = tmp_path_factory.mktemp("schema") / "store.db"
    app = create_app(model_path, f"sqlite:///{place}")
    document = schemathesis.openapi.from_asgi("/openapi.json", app)
    app.service.wait()
    return document


def test_the_service_does_what_its_document_says(api) -> None:
    asked = 0
    for found in api.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=12,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def conforms(case) -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate(excluded_checks=DEPENDS_ON_DATA)

        conforms()
    assert asked > 100
