"""Keys of fifty kinds, drawn at random, as they stand in texts: which of them pass.

The figures stand in docs/results/reliability.md; ``python -m tests.security.test_secret_corpus``
prints its table.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from combee_dspy.lms.redact import scrub

ALNUM = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
URL = ALNUM + "-_"
DRAWS = 12


def _of(rng: random.Random, alphabet: str, length: int) -> str:
    """Return random characters, the first and last of which are letters or digits."""
    ends = [mark for mark in alphabet if mark.isalnum()]
    middle = "".join(rng.choice(alphabet) for _ in range(length - 2))
    return rng.choice(ends) + middle + rng.choice(ends)


def _begins(start: str, alphabet: str, length: int) -> Callable[[random.Random], str]:
    return lambda rng: start + _of(rng, alphabet, length)


def _jwt(rng: random.Random) -> str:
    def part(data: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")

    claims = {"sub": _of(rng, LOWER, 12), "iat": rng.randrange(10**9)}
    return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(claims)}.{_of(rng, URL, 43)}"


def _body(rng: random.Random, start: str) -> str:
    body = start + _of(rng, ALNUM + "+/", 820)
    return "\n".join(body[at : at + 64] for at in range(0, len(body), 64))


def _pem(kind: str, start: str) -> Callable[[random.Random], str]:
    head, end = f"-----BEGIN {kind}PRIVATE KEY-----", f"-----END {kind}PRIVATE KEY-----"
    return lambda rng: f"{head}\n{_body(rng, start)}\n{end}"


# Keys that are told by what they look like, wherever they stand.
SHAPED: dict[str, Callable[[random.Random], str]] = {
    "openai": _begins("sk-", ALNUM, 48),
    "openai project": _begins("sk-proj-", URL, 120),
    "anthropic": _begins("sk-ant-api03-", URL, 93),
    "openrouter": _begins("sk-or-v1-", HEX, 64),
    "google api": _begins("AIza", URL, 35),
    "google oauth": _begins("ya29.", URL, 120),
    "google client secret": _begins("GOCSPX-", URL, 28),
    "huggingface": _begins("hf_", ALNUM, 34),
    "groq": _begins("gsk_", ALNUM, 52),
    "xai": _begins("xai-", ALNUM, 80),
    "perplexity": _begins("pplx-", ALNUM, 48),
    "fireworks": _begins("fw_", ALNUM, 24),
    "nvidia": _begins("nvapi-", URL, 64),
    "replicate": _begins("r8_", ALNUM, 37),
    "langsmith": _begins("lsv2_pt_", HEX, 32),
    "cerebras": _begins("csk-", LOWER, 48),
    "aws id": _begins("AKIA", UPPER, 16),
    "aws session id": _begins("ASIA", UPPER, 16),
    "github": _begins("ghp_", ALNUM, 36),
    "github app": _begins("ghs_", ALNUM, 36),
    "github fine-grained": _begins("github_pat_11", ALNUM + "_", 80),
    "gitlab": _begins("glpat-", URL, 20),
    "gitlab runner": _begins("glrt-", URL, 20),
    "slack bot": lambda rng: (
        f"xoxb-{rng.randrange(10**11)}-{rng.randrange(10**12)}-{_of(rng, ALNUM, 24)}"
    ),
    "slack user": lambda rng: (
        f"xoxp-{rng.randrange(10**11)}-{rng.randrange(10**12)}-{_of(rng, HEX, 32)}"
    ),
    "slack app": lambda rng: (
        f"xapp-1-{_of(rng, UPPER, 11)}-{rng.randrange(10**13)}-{_of(rng, HEX, 64)}"
    ),
    "slack webhook": lambda rng: (
        "https://hooks.slack.com/services/"
        f"T{_of(rng, UPPER, 10)}/B{_of(rng, UPPER, 10)}/{_of(rng, ALNUM, 24)}"
    ),
    "stripe": _begins("sk_live_", ALNUM, 24),
    "stripe restricted": _begins("rk_test_", ALNUM, 24),
    "npm": _begins("npm_", ALNUM, 36),
    "pypi": _begins("pypi-AgEIcHlwaS5vcmc", URL, 120),
    "sendgrid": lambda rng: f"SG.{_of(rng, URL, 22)}.{_of(rng, URL, 43)}",
    "mailgun": _begins("key-", HEX, 32),
    "mailchimp": lambda rng: f"{_of(rng, HEX, 32)}-us{rng.randrange(1, 20)}",
    "square": _begins("sq0csp-", URL, 43),
    "digitalocean": _begins("dop_v1_", HEX, 64),
    "shopify": _begins("shpat_", HEX, 32),
    "docker": _begins("dckr_pat_", URL, 27),
    "atlassian": _begins("ATATT3", URL, 180),
    "grafana": _begins("glsa_", ALNUM + "_", 41),
    "vault": _begins("hvs.", URL, 90),
    "telegram": lambda rng: f"{rng.randrange(10**8, 10**10)}:AA{_of(rng, URL, 33)}",
    "age": _begins("AGE-SECRET-KEY-1", UPPER, 58),
    "jwt": _jwt,
    "rsa key": _pem("RSA ", "MIIE"),
    "pkcs8 key": _pem("", "MIIE"),
    "ec key": _pem("EC ", "MHcC"),
    "openssh key": _pem("OPENSSH ", "b3BlbnNzaC1rZXktdjE"),
    "key body": lambda rng: _body(rng, "MIIEpAIBAAK"),
}
# Keys of no form of their own: told by the name before them, and not without it.
NAMED: dict[str, tuple[str, Callable[[random.Random], str]]] = {
    "aws secret": ("AWS_SECRET_ACCESS_KEY", _begins("", ALNUM + "+/", 40)),
    "azure": ("AZURE_OPENAI_API_KEY", _begins("", HEX, 32)),
    "mistral": ("mistral_api_key", _begins("", ALNUM, 32)),
    "twilio": ("auth_token", _begins("", HEX, 32)),
    "heroku": (
        "HEROKU_API_KEY",
        lambda rng: f"{_of(rng, HEX, 8)}-{_of(rng, HEX, 4)}-{_of(rng, HEX, 12)}",
    ),
    "session": ("Cookie", lambda rng: f"sid={_of(rng, ALNUM, 32)}"),
    "github own header": ("X-GITHUB_PAT", _begins("", ALNUM, 40)),
    "password": ("db_password", lambda rng: _of(rng, ALNUM, 11) + "7"),
}


def contexts(secret: str) -> Iterator[str]:
    """Yield texts with a key in them, as programs, services and logs write them."""
    yield secret
    yield f"The service refused the key {secret} (HTTP 401)."
    yield json.dumps({"error": {"message": f"bad credential '{secret}'"}})
    yield json.dumps({"body": json.dumps({"value": secret})})
    yield f"headers={{'X-Own': '{secret}', 'Accept': '*/*'}}"
    yield f"curl -H 'X-Own:{secret}' https://host/v1?q=1"


def named_contexts(name: str, secret: str) -> Iterator[str]:
    yield f"{name}={secret}"
    yield f"{name}: {secret}"
    yield json.dumps({"env": {name: secret}})
    yield json.dumps({"body": json.dumps({name: secret})})
    yield f"headers={{'{name}': '{secret}'}}"
    yield f"export {name}='{secret}'"


def passes(secret: str, text: str) -> bool:
    """Return whether ten characters of a key in a row are left, its first ones aside."""
    left = scrub(text)
    secret = secret.removeprefix("https://hooks.slack.com/services/")
    lines = [line for line in secret.split("\n") if len(line) >= 10 and "-----" not in line]
    return any(
        line[at : at + 10] in left
        for line in lines
        for at in range(min(12, len(line) - 10), len(line) - 9, 5)
    )


def miss_rates() -> dict[str, tuple[int, int]]:
    """Return by kind how many texts leak, and of how many; those without a name last."""
    rates = {}
    for kind, make in SHAPED.items():
        rng = random.Random(f"keys/{kind}")
        texts = [(key, text) for key in (make(rng) for _ in range(DRAWS)) for text in contexts(key)]
        rates[kind] = (sum(passes(*pair) for pair in texts), len(texts))
    for kind, (name, make) in NAMED.items():
        rng = random.Random(f"keys/{kind}")
        keys = [make(rng) for _ in range(DRAWS)]
        texts = [(key, text) for key in keys for text in named_contexts(name, key)]
        rates[kind] = (sum(passes(*pair) for pair in texts), len(texts))
        bare = [(key, text) for key in keys for text in contexts(key)]
        rates[f"{kind}, without its name"] = (sum(passes(*pair) for pair in bare), len(bare))
    return rates


RATES = miss_rates()


@pytest.mark.parametrize("kind", [*SHAPED, *NAMED])
def test_no_key_of_a_known_form_passes(kind: str) -> None:
    assert RATES[kind][0] == 0, RATES[kind]


def test_ordinary_texts_stay() -> None:
    root = Path(__file__).parents[2]
    texts = [
        *(path.read_text(encoding="utf-8") for path in sorted(root.glob("docs/**/*.md"))),
        (root / "combee_dspy/benchmarks/formula_mini/formulas.toml").read_text(encoding="utf-8"),
        (root / "combee_dspy/benchmarks/finer/labels.txt").read_text(encoding="utf-8"),
    ]
    lines = [line for text in texts for line in text.splitlines()]
    changed = [line for line in lines if scrub(line) != line]

    assert len(changed) <= len(lines) / 1000, changed


if __name__ == "__main__":
    for kind, (misses, total) in sorted(RATES.items(), key=lambda item: -item[1][0]):
        print(f"| {kind} | {misses} of {total} |")  # noqa: T201 - its output
