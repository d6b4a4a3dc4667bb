"""One server for all tests of a deployment; starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.deployed import Deployment


@pytest.fixture(scope="session")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment.running(tmp_path_factory.mktemp("deployed") / "server") as deployment:
        yield deployment
