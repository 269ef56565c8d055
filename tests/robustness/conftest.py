"""What these assert is said in full where it fails."""

import pytest

pytest.register_assert_rewrite(
    "support.machine", "support.machine_clients", "support.machine_executors"
)
