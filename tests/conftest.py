"""Settings shared by all tests."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A per-example deadline measures the machine's load, not the code; each test has a time limit of its own. The
# same examples each time, so that a change is judged by what it changed; `--hypothesis-profile=explore` draws
# new ones.
settings.register_profile("shared", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False)
settings.load_profile("shared")

# What is started in the background inherits ignored signals, and would hand them on to what the tests start.
for _signum, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_signum) == signal.SIG_IGN:
        signal.signal(_signum, _handler)


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    """Give stops and the doctor more time than in production: other work may take up the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slime_bridge.worker._STOP_SECONDS", 20.0)
        patch.setattr("slime_bridge.evaluation.run._STOP_SECONDS", 20.0)
        patch.setattr("slime_bridge.doctor.examination._REQUEST_SECONDS", 15.0)
        yield
