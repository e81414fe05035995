"""One server for all the tests of a file that only ask."""

import pytest

from tests.layer3_system.server.http_server import served


@pytest.fixture(scope="module")
def mock():
    with served() as one:
        yield one
