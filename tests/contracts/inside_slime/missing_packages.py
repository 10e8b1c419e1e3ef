"""A pytest plugin for Slime's own contract tests: stands in for the small packages that this machine lacks.

Ray, the router and Transformers are replaced by those tests themselves.
"""

import importlib.util
import sys

from tests.contracts.inside_slime.host import STUBBED_IF_MISSING, StubFinder

sys.meta_path.insert(
    0, StubFinder([name for name in STUBBED_IF_MISSING if importlib.util.find_spec(name) is None])
)
