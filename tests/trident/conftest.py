"""The conformance kit's asserts show what they compare."""

import pytest

pytest.register_assert_rewrite("trident.testing.conformance")
