"""What keys look like: a table, as data.

The formats are those that services publish, and that the detectors of detect-secrets 1.5.0
(Apache-2.0) list. It is no dependency: it had no release since May 2024, it lacks half of what
follows, and it says that a line holds a secret but not always where it ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["MASK", "SHAPES", "Shape"]

MASK = "[redacted]"
"""What stands where a key stood."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One form of keys.

    Attributes:
        hints: Texts in lower case, one of which every match contains. Looking for them costs a few
            microseconds, a pattern costs ten.
        pattern: Finds such keys.
        mask: What replaces a match.
    """

    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    mask: str = MASK


# What stands before the last @ of an address: a name may hold @, a password @ and slashes, and
# either may be missing. A port with a path after it is no password. Bounded, because a hostile text
# may hold nothing but beginnings.
_LOGIN = r"[^\s/?#\"'<>:]*:(?!\d{1,5}[/?#])[^\s\"'<>]{1,256}|[^/\s:@]*:[^/\s@]+"
# A name alone is taken for a token where the web is asked; elsewhere (an image, a package, a login)
# only where it is long and holds a digit.
_NAME_ALONE = (
    r"(?:(?<=http://)|(?<=https://))[\w.~%!$&*+=-]{8,}|(?=[\w~%!$&*+=-]*\d)[\w~%!$&*+=-]{20,}"
)
# A name that says so, and what it is set to: eight characters, of which one is a digit, since
# words follow such names too.
_SAYS_SO = (
    r"secret|token|passw(?:or)?d|passphrase|credentials?|private[-_]?key|access[-_]?key|[-_]pat"
    r"|[-_]jwt|[-_]auth|cookie"
)
_NAME_HINTS = (
    *("secret", "token", "passw", "passphrase", "credential", "cookie"),
    *("private-key", "private_key", "privatekey", "access-key", "access_key", "accesskey"),
    *("-pat", "_pat", "-jwt", "_jwt", "-auth", "_auth"),
)
_VALUE = r"[^\s'\",;&)}\]\\]"
_SET_TO = (
    rf"(?i)((?:{_SAYS_SO})['\"\\]*\s*(?:[:=]|=>)\s*['\"\\]*)"
    # Code that computes it is none, nor is a number or a date.
    rf"(?![a-z_][\w.]{{0,256}}[\[(])(?![\d-]+(?!{_VALUE}))(?={_VALUE}{{0,256}}\d){_VALUE}{{8,}}"
)

# Tokens that begin with a name of their own: the beginning, and what follows it at least.
_TOKENS = (
    # OpenAI, Anthropic, DeepSeek, OpenRouter, Stripe; services show a refused key with stars in its
    # middle.
    ("sk- rk- pk-", r"\b(?:sk|rk|pk)-[\w*.-]{6,}"),
    ("sk_ rk_ whsec_", r"\b(?:[sr]k_(?:live|test)|whsec)_[\w*]{16,}"),
    (
        "hf_ hf- gsk_ gsk- xai- pplx- fw_ nvapi- r8_ lsv2_ csk- tgp_",
        r"\b(?:hf|gsk|xai|pplx|fw|nvapi|r8|lsv2|csk|tgp)[_-][\w*-]{12,}",
    ),
    ("aiza", r"\bAIza[\w*-]{20,}"),
    ("ya29. gocspx-", r"\b(?:ya29\.|GOCSPX-)[\w.-]{16,}"),
    ("akia asia abia acca a3t", r"\b(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{12,}\b"),
    ("ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"\bgh[opusr]_\w{16,}|\bgithub_pat_\w{20,}"),
    (
        "glpat- gldt- glft- glsoat- glrt- glcbt- glptt- glagent- gloas- glimt- glffct-",
        r"\b(?:glpat|gldt|glft|glsoat|glrt|glcbt|glptt|glagent|gloas|glimt|glffct)-[\w.-]{16,}",
    ),
    ("xox xapp", r"(?i)\b(?:xox[abeoprs](?:\.xox[bp])?|xapp)-(?=\d)[\w-]{8,}"),
    ("hooks.slack.com", r"(?i)(?<=hooks\.slack\.com/)(?:services|workflows)/[\w/]{16,}"),
    ("discord", r"(?i)(?<=discord\.com/api/webhooks/)\d+/[\w-]{20,}"),
    (
        "npm_ dop_v1_ doo_v1_ dor_v1_ shp rubygems_ pscale_",
        (
            r"\bnpm_[A-Za-z0-9]{36}|\b(?:do[opr]_v1|shp(?:at|ca|pa|ss)|rubygems|pscale_(?:tkn|pw|oauth))_[\w.-]{16,}"
        ),
    ),
    ("pypi-", r"\bpypi-[\w-]{16,}"),
    ("sg.", r"\bSG\.[\w-]{16,}\.[\w-]{16,}"),
    ("key-", r"\bkey-[0-9a-f]{32}\b"),
    ("-us", r"\b[0-9a-f]{32}-us\d{1,2}\b"),
    ("sq0", r"\bsq0[a-z]{3}-[\w-]{22,}"),
    ("eaaa", r"\bEAAA[\w-]{56,}"),
    (
        "dckr_ atat nrak- glc_ glsa_ hvs. hvb. ops_",
        (r"\b(?:dckr_pat_|ATATT3|NRAK-|glc_|glsa_|hv[sb]\.|ops_ey)[\w=.+/-]{16,}"),
    ),
    (":aa", r"(?<!\w)\d{8,10}:AA[\w-]{32,34}(?![\w-])"),
    ("age-secret-key-", r"(?i)\bage-secret-key-1\w{40,}"),
    # A token of three parts (RFC 7519), the last of which may be cut off.
    ("eyj", r"\beyJ[\w-]{8,}={0,2}\.[\w-]{8,}={0,2}(?:\.[\w-]*){0,3}"),
    # A private key with its body, which may be cut off or stand within JSON; and such a body alone.
    (
        "private key",
        (
            r"(?s)-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY[A-Z ]{0,10}-----"
            r".*?(?:-----END [A-Z0-9 ]{0,30}PRIVATE KEY[A-Z ]{0,10}-----|\Z)"
        ),
    ),
    (
        "mii mhc b3blbnnzac1rzxktdje",
        (
            r"\b(?:MII[\w+/]{2,3}IBA[AD]|MHcC|b3BlbnNzaC1rZXktdjE)[\w+/=]{40,}(?:(?:\\+r)?(?:\\+n|\s)+"
            r"[\w+/=]{20,})*(?:(?:\\+n|\s)+[\w+/]{1,63}={0,2}(?=\W|\Z))?"
        ),
    ),
    ("accountkey sharedaccesskey", r"(?i)(?<=accountkey=|.accesskey=)[\w+/=]{32,}"),
)

SHAPES = (
    # A digit or twenty characters tell a credential from a word ("Bearer authentication").
    Shape(
        ("bearer", "basic"),
        re.compile(r"(?i)\b(Bearer|Basic)\s+(?:(?=\S*\d)[\w.~+/=*-]{6,}|[\w.~+/=*-]{20,})"),
        rf"\1 {MASK}",
    ),
    *(Shape(tuple(hints.split()), re.compile(pattern)) for hints, pattern in _TOKENS),
    Shape(("://",), re.compile(rf"(?i)(://)(?:{_LOGIN}|{_NAME_ALONE})@"), rf"\1{MASK}@"),
    # An argument of a database's address.
    Shape(
        ("passw",),
        re.compile(r"(?i)([?&](?:ssl)?passw(?:or)?d=)[^\s&'\")]+"),
        rf"\1{MASK}",
    ),
    Shape(
        ("key",),
        re.compile(
            r"(?i)((?<![a-z])(?:x-)?api[-_ ]?key\b|[?&]key)(['\"\\]*\s*[:=]\s*['\"\\]*)"
            r"[^\s'\",;&)}\]\\]{4,}"
        ),
        rf"\1\2{MASK}",
    ),
    Shape(
        _NAME_HINTS,
        re.compile(_SET_TO),
        rf"\1{MASK}",
    ),
)
"""All of them. A key of no form of its own (random characters alone) is told by its name only."""
