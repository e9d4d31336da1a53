from plugins.strategist.tests.canaries import learned, published, server  # noqa: F401 - fixtures
from plugins.strategist.tests.lives import desk  # noqa: F401 - a fixture
from tests.cli.conftest import files, recorded, shell  # noqa: F401 - fixtures
from tests.conftest import (  # noqa: F401 - fixtures
    autolog,
    empty_store,
    mlflow_store,
    running_service,
    service,
    world,
)
