from __future__ import annotations

import json
import re

import dspy
import pytest

from combee_dspy.lms.redact import personal, scrub, secret_variables, secrets_of


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Incorrect API key provided: sk-proj-abc123DEF456.", "sk-proj-abc123DEF456"),
        ("Incorrect API key provided: sk-abcd****wxyz.", "wxyz"),
        ("header Authorization: Bearer abc.def-123", "abc.def-123"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZDEyMw==", "dXNlcjpwYXNzd29yZDEyMw"),
        ('{"api_key": "abcd1234"}', "abcd1234"),
        ("x-api-key: zyxw9876", "zyxw9876"),
        ("GET /v1/models?key=AbCdEf12&alt=json", "AbCdEf12"),
        ("https://user:hunter2@host/v1", "hunter2"),
        ("redis://:hunter2@host/0", "hunter2"),
        ("https://someuser@corp.com:hunter2pass@host/x", "hunter2pass"),
        ("postgresql://me@corp.com:hunter2pass@db/x", "hunter2pass"),
        ("https://abcdefghij0123456789@host/x.git", "abcdefghij"),
        ("git+https://ghp_abcdefghijklmnop@host/x.git", "ghp_"),
        ("HTTPS://tokenofletters@host/x.git", "tokenofletters"),
        ("ssh://ghp_abcdefghijklmnop0123456789@host/x.git", "ghp_"),
        ("amqp://abcdefghij0123456789@host", "abcdefghij"),
        ("postgresql://user:p@ss@host/db", "ss@"),
        ("postgresql://user:pa/ss@host/db", "ss"),
        ("postgresql://user:pa'ss@host/db", "ss"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstu", "AIzaSyA"),
        ("token hf_abcdefghijklmnop", "abcdefghijklmnop"),
        ("AKIAABCDEFGHIJKLMNOP", "AKIA"),
        ("postgresql://host/db?user=ann&password=geheim", "geheim"),
    ],
)
def test_keys_are_recognised_by_their_shape(text: str, secret: str) -> None:
    assert secret not in scrub(text)
    assert "[redacted]" in scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "Bearer authentication is required",
        "basic knowledge of risk-averse tasks",
        "The api_key client option must be set",
        "http://127.0.0.1:8000/v1 refused the connection",
        "ssh://git@host/x and https://host/@somebody/post",
        "http://localhost:8000/users?mail=ann@host",
        '{"url":"https://host/x","mail":"ann@host"}',
        (
            "docker://registry.example@sha256:0123456789abcdef and"
            " docker://registry2.example.com@sha256:0123456789abcdef"
        ),
        "npm://left-pad@1.3.0",
        "ssh://deployer@host",
        "maximum context length is 8192 tokens",
    ],
)
def test_plain_words_stay(text: str) -> None:
    assert scrub(text) == text


def test_values_of_the_lm_and_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "plainlookingvalue")
    monkeypatch.setenv("ACME_MODEL", "some-model-name")
    lm = dspy.LM(
        "openai/m",
        api_key="abcdefghij",
        extra_headers={"x-gateway": "gatewayvalue"},
        max_tokens=12,
        stop="stopword",
    )
    secrets = secrets_of(lm)
    assert set(secrets) == {"abcdefghij", "gatewayvalue"}
    text = scrub("abcdefghij gatewayvalue plainlookingvalue some-model-name", secrets)
    assert text == "[redacted] [redacted] [redacted] some-model-name"


@pytest.mark.parametrize(
    "secret", ["line one\nline two", 'quo"ted\\and more', "schlüssel-grün", "from-a-file-1\r\n"]
)
def test_a_secret_is_known_as_text_as_json_and_without_white_space_around_it(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("ACME_SECRET", secret)
    bare = secret.strip()
    once = [json.dumps(bare), json.dumps(bare, ensure_ascii=False)]
    twice = [json.dumps(text, ensure_ascii=plain) for text in once for plain in (True, False)]
    for form in (bare, *once, *twice):
        assert scrub(f"<{form}>").replace('"', "").replace("\\", "") == "<[redacted]>"


def test_placeholders_are_no_secrets() -> None:
    assert scrub("none of the models answered", ["none"]) == "none of the models answered"
    assert secrets_of(object()) == ()


def test_a_key_inside_another_is_removed_whole() -> None:
    assert scrub("abcdefgh-longer", ["abcdefgh", "abcdefgh-longer"]) == "[redacted]"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api_key", True),
        ("apiKey", True),
        ("x-api-key", True),
        ("aws_secret_access_key", True),
        ("aws_session_token", True),
        ("HF_TOKEN", True),
        ("Authorization", True),
        ("vertex_credentials", True),
        ("db_passwd", True),
        ("max_tokens", False),
        ("KEYBOARD", False),
        ("tokenizer", False),
    ],
)
def test_one_rule_says_which_names_hold_a_secret(
    name: str, secret: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "plain-looking-value"
    monkeypatch.setenv(name, value)
    assert (value in secret_variables()) is secret
    lm = dspy.LM("openai/none")
    lm.kwargs = {name: value}
    assert secrets_of(lm) == ((value,) if secret else ())


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("Write to ana.lopez+x@mail.example.co.uk.", "Write to [email]."),
        ("4111 1111 1111 1111 or 378282246310005", "[card] or [card]"),
        ("4111 1111 1111 1112", "4111 1111 1111 1112"),  # fails Luhn's check
        ("Call +49 151 2345 6789 or (202) 555-0143!", "Call [phone] or [phone]!"),
        ("tel. 5552345", "tel. [phone]"),
        (
            "born 01/17/2024 16:30, filed 0001193125-15-118890",
            "born 01/17/2024 16:30, filed 0001193125-15-118890",
        ),
        (
            "192.168.100.200 cost $1,234,567.89 at 10.5@2x",
            "192.168.100.200 cost $1,234,567.89 at 10.5@2x",
        ),
        ("", ""),
    ],
)
def test_personal_data_is_marked_and_other_numbers_are_not(text, after):
    assert personal({})(text) == after


def test_patterns_of_ones_own_come_first():
    redact = personal({"customer": re.compile(r"C\d+@shop")})
    assert redact("C12@shop.example and a@b.org") == "[customer].example and [email]"


@pytest.mark.parametrize("piece", ["a@", "4 ", "+1 ", "(0", "call ", "1-", "a.b.c@d.", "٣"])
def test_a_hostile_text_takes_time_in_proportion(piece):
    personal({})(piece * 50_000)
