from combee_dspy import registry

from combee_template import Template


def test_it_comes_from_this_distribution_and_is_found_by_name():
    entries = [entry for entry in registry.installed() if (entry.kind, entry.name) == ("aggregator", "template")]
    assert [(entry.distribution, entry.problem) for entry in entries] == [("combee-dspy-template", None)]
    assert registry.build("aggregator", "template") == Template()
