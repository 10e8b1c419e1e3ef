"""Settings shared by all tests."""

from hypothesis import settings

# A per-example deadline measures the machine's load, not the code; each test has a time limit of its own.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
