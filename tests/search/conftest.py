from tests.scripted import scripted  # noqa: F401 - a fixture
