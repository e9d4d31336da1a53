from tests.scripted import example, scripted  # noqa: F401 - fixtures
