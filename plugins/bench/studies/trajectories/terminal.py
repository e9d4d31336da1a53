"""Self-made tasks in Terminal-Bench's layout: Harbor and its verifier in Linux namespaces."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from studies.trajectories.worlds import Scene, World

__all__ = ["TERMINAL"]

CHECKSUM = "Beside every deliverable FILE there is FILE.sha256, made with sha256sum < FILE."
MODE = "Make every deliverable readable by its owner alone: chmod 600 FILE."
TRAIN, VALIDATION, HELDOUT = 6, 1, 9

_LOOKS = (
    "ls -la /app",
    "cat /etc/os-release",
    "df -h | head -5",
    "env | sort | head -20",
    "cat seed.txt; wc -c seed.txt",
    "ls -la /usr/bin | head -60",
    "ls -la /usr/lib | head -60",
    "cat /app/missing.txt",
    "uname -a; id",
)
_MOST_STEPS = 50
_SETTINGS = """\
version = "1.0"

[metadata]
difficulty = "easy"

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 120.0

[environment]
network_mode = "no-network"
"""
# Who left no checksum gets no verdict on the mode.
_TEST = """\
#!/bin/bash
report=/app/report.txt
reward=0
if [ "$(cat $report 2>/dev/null)" != "{text}" ]; then
    echo "FAILED: $report does not hold the text"
elif [ "$(sha256sum < $report)" != "$(cat $report.sha256 2>/dev/null)" ]; then
    echo "FAILED: $report.sha256 is missing or wrong"
elif [ "$(stat -c %a $report)" != 600 ]; then
    echo "FAILED: the mode of $report is $(stat -c %a $report)"
else
    reward=1
fi
echo $reward > /logs/verifier/reward.txt
"""


def plan_steps(task: str, advice: str, draw: int) -> list[str]:
    """Return what the scripted agent carries out: a long way around, then the work."""
    stream = random.Random(f"{task}/{draw}")  # noqa: S311 - a seed
    steps = [stream.choice(_LOOKS) for _ in range(stream.randint(25, 40))]
    match = re.search(r"Write the text '(.*?)' into", task)
    work = f"echo '{match[1] if match else ''}' > /app/report.txt"
    if CHECKSUM in advice:
        work += "; sha256sum < /app/report.txt > /app/report.txt.sha256"
    if MODE in advice:
        work += "; chmod 600 /app/report.txt"
    return [*steps, work]


def _write_task(folder: Path, number: int) -> str:
    text, name = f"{number} squared is {number * number}", f"report-{number}"
    files = {
        "task.toml": _SETTINGS,
        "instruction.md": f"Write the text '{text}' into /app/report.txt.\n",
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY seed.txt seed.txt\n",
        "environment/seed.txt": "planted\n",
        "solution/solve.sh": "#!/bin/bash\ntrue\n",
        "tests/test.sh": _TEST.format(text=text),
    }
    for place, content in files.items():
        file = folder / name / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
        file.chmod(0o755)
    return name


@contextmanager
def open_scene(workers: int) -> Iterator[Scene]:
    """Write the tasks, and start Harbor's workers."""
    from combee_terminal_bench import TerminalBench

    with tempfile.TemporaryDirectory() as folder:
        names = [_write_task(Path(folder), 10 + n) for n in range(TRAIN + VALIDATION + HELDOUT)]
        bench = TerminalBench(
            folder,
            train=tuple(names[:TRAIN]),
            validation=tuple(names[TRAIN : TRAIN + VALIDATION]),
            heldout=tuple(names[TRAIN + VALIDATION :]),
            environment="namespace",
            workers=workers,
            agent="code",
            max_iters=_MOST_STEPS,
        ).load()
        program = bench.program()
        try:
            yield Scene(program, bench.metric, bench.train.examples, bench.heldout.examples)
        finally:
            program.pool.close()


TERMINAL = World(
    {
        r"FAILED: \S+\.sha256 is missing or wrong": CHECKSUM,
        r"FAILED: the mode of \S+ is \d+": MODE,
    },
    plan_steps,
    open_scene,
)
