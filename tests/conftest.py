"""Settings shared by all tests."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

# A per-example deadline measures the machine's load, not the code; each test has a time limit of its own.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    """Give stops and the doctor more time than in production: other work may take up the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slime_bridge.worker._STOP_SECONDS", 20.0)
        patch.setattr("slime_bridge.evaluation.run._STOP_SECONDS", 20.0)
        patch.setattr("slime_bridge.doctor.examination._REQUEST_SECONDS", 15.0)
        yield
