"""Self-made tasks in Harbor's layout, which need no image."""

from __future__ import annotations

from pathlib import Path

SETTINGS = """\
version = "1.0"

[metadata]
difficulty = "easy"

[agent]
timeout_sec = {agent}

[verifier]
timeout_sec = {verifier}

[environment]
network_mode = "{network}"
"""

REPORT_TEST = """\
#!/bin/bash
report=/app/report.txt
reward=0
if [ "$(cat $report 2>/dev/null)" != "{text}" ]; then
    echo "FAILED: $report does not hold the text"
elif [ "$(sha256sum < $report)" != "$(cat $report.sha256 2>/dev/null)" ]; then
    echo "FAILED: $report.sha256 is missing or wrong. Rule: beside every deliverable FILE there is FILE.sha256, \
made with sha256sum < FILE"
else
    reward=1
fi
[ $reward = 1 ] && status=passed || status=failed
echo '{{"results": {{"tests": [{{"name": "report", "status": "'$status'"}}]}}}}' > /logs/verifier/ctrf.json
echo $reward > /logs/verifier/reward.txt
"""


def make_task(
    folder: Path,
    name: str,
    instruction: str,
    *,
    test: str,
    solution: str = "true",
    dockerfile: str = "FROM debian:12\nWORKDIR /app\n",
    agent: float = 120.0,
    verifier: float = 120.0,
    network: str = "no-network",
) -> Path:
    """Write one task."""
    task = folder / name
    for part in ("environment", "solution", "tests"):
        (task / part).mkdir(parents=True)
    (task / "task.toml").write_text(SETTINGS.format(agent=agent, verifier=verifier, network=network))
    (task / "instruction.md").write_text(instruction + "\n")
    (task / "environment" / "Dockerfile").write_text(dockerfile)
    (task / "environment" / "seed.txt").write_text("planted\n")
    for script, text in (
        ("solution/solve.sh", f"#!/bin/bash\n{solution}\n"),
        ("tests/test.sh", test),
    ):
        (task / script).write_text(text)
        (task / script).chmod(0o755)
    return task


def make_report(folder: Path, name: str, number: int) -> Path:
    """Write a task that asks for a report, and whose test wants a checksum beside it, of which it
    does not say.
    """
    text = f"{number} squared is {number * number}"
    return make_task(
        folder,
        name,
        f"Write the text '{text}' into /app/report.txt.",
        test=REPORT_TEST.format(text=text),
        solution=(f"echo '{text}' > /app/report.txt; sha256sum < /app/report.txt > /app/report.txt.sha256"),
    )
