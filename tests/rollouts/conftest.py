from tests.lms.conftest import service  # noqa: F401 - a fixture
from tests.scripted import example, scripted  # noqa: F401 - fixtures
