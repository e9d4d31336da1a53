"""Harbor, its agents and its verifier, in namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from combee_agents import EnvironmentFaultError, SessionLimits, SessionPool
from tasks_made import make_report, make_task

from combee_terminal_bench import HarborEnvironment, judge, read_tasks
from combee_terminal_bench._environment import remove_containers

PASS = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"


def folders(folder):
    return {task.name: str(task.folder) for task in read_tasks(folder)}


def pool_of(folder, size=1, limits=None, command_timeout=30, made=None):
    def make():
        environment = HarborEnvironment(folders(folder), "namespace", command_timeout=command_timeout)
        if made is not None:
            made.append(environment)
        return environment

    return SessionPool(make, size, limits=limits)


def alive(mark):
    """Return the processes whose command line holds a mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in words and int(entry.name) != os.getpid():
            found.append(words.replace("\0", " "))
    return found


@pytest.fixture
def one(tmp_path):
    make_report(tmp_path, "one", 3)
    return tmp_path


def combee(*arguments):
    """Run the command line, as it finds the plugin's commands."""
    return subprocess.run(
        [Path(sys.executable).with_name("combee"), "terminal-bench", *arguments],
        capture_output=True,
        text=True,
    )


def test_the_oracle_passes_and_doing_nothing_fails(one):
    make_report(one, "two", 4)
    done = combee("check", str(one), "--environment", "namespace")
    assert (done.returncode, done.stdout) == (
        0,
        "one: oracle 1, nop 0\ntwo: oracle 1, nop 0\n",
    ), done.stderr


def test_a_task_that_cannot_be_passed_is_found_out(tmp_path):
    make_task(tmp_path, "broken", "Do.", test="#!/bin/bash\necho 0 > /logs/verifier/reward.txt\n")
    done = combee("check", str(tmp_path), "--environment", "namespace")
    assert (done.returncode, done.stdout) == (1, "broken: oracle 0, nop 0\n"), done.stderr


def test_what_a_failure_tells(one):
    environment = HarborEnvironment(folders(one), "namespace")
    try:
        environment.start()
        done, nothing = judge(environment, "one", "oracle"), judge(environment, "one", "nop")
    finally:
        environment.kill()
    assert (done.score, done.passed, dict(done.failed)) == (1.0, ("report",), {})
    assert (nothing.score, nothing.passed, set(nothing.failed)) == (0.0, (), {"report"})
    assert "does not hold the text" in nothing.feedback
    assert "harness tests only" in nothing.details["environment"]


def test_an_agent_acts_and_is_judged_once(one):
    with pool_of(one) as pool, pool.session("one") as session:
        assert session.exec("pwd; echo complaint >&2; (exit 3)") == "/app\ncomplaint\n[exit status 3]"
        assert session.exec("cd /tmp && X=1") == "(no output)"
        session.exec("echo '3 squared is 9' > report.txt; sha256sum < report.txt > report.txt.sha256")
        assert session.evaluate().score == 1.0
        assert "nothing was carried out" in session.exec("rm report.txt")
        assert session.evaluate().score == 1.0


def test_a_command_that_hangs_is_the_agents_own(one):
    with pool_of(one, command_timeout=2) as pool:
        with pool.session("one") as session:
            assert "stopped after 2 seconds" in session.exec("sleep 7654")
            assert session.exec("echo still here") == "still here"
            assert session.evaluate().score == 0.0
        assert pool.stats.faults == {}
        assert alive("sleep\x007654") == []


def test_a_verifier_that_hangs_is_stopped_and_is_no_score(tmp_path):
    make_task(tmp_path, "hung", "Wait.", test="#!/bin/bash\nsleep 8765\n")
    with pool_of(tmp_path, limits=SessionLimits(evaluate=4.0)) as pool:
        with pytest.raises(EnvironmentFaultError) as caught, pool.session("hung") as session:
            session.evaluate()
        assert caught.value.kind == "timeout"
        assert caught.value.retryable and caught.value.rollout is None
        assert pool.stats.faults == {"timeout": 1}
        assert alive("sleep\x008765") == []


def test_a_tasks_own_limit_on_its_verifier_is_no_score_either(tmp_path):
    make_task(tmp_path, "hung", "Wait.", test="#!/bin/bash\nsleep 9876\n", verifier=2.0)
    with pool_of(tmp_path) as pool:
        with pytest.raises(EnvironmentFaultError, match="VerifierTimeoutError") as caught:
            with pool.session("hung") as session:
                session.evaluate()
        assert caught.value.kind == "timeout"
        assert alive("sleep\x009876") == []


def test_the_tasks_limit_on_the_agent_ends_it_and_what_it_left_is_judged(tmp_path):
    make_task(tmp_path, "short", "Wait.", test=PASS, agent=3.0)
    with pool_of(tmp_path) as pool, pool.session("short") as session:
        assert "used up" in session.exec("sleep 20")
        evaluation = session.evaluate()
    assert evaluation.score == 1.0
    assert "used up" in evaluation.feedback


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("#!/bin/bash\nexit 1\n", "RewardFileNotFoundError"),
        ("#!/bin/bash\necho many > /logs/verifier/reward.txt\n", "VerifierOutputParseError"),
        ("#!/bin/bash\necho 7 > /logs/verifier/reward.txt\n", "no reward from 0 to 1"),
        (
            '#!/bin/bash\necho \'{"a": 1, "b": 0}\' > /logs/verifier/reward.json\n',
            "no reward from 0 to 1",
        ),
    ],
)
def test_a_verifier_without_a_reward_is_no_score(tmp_path, test, reason):
    make_task(tmp_path, "odd", "Anything.", test=test)
    with pool_of(tmp_path) as pool, pytest.raises(EnvironmentFaultError, match=reason) as caught:
        with pool.session("odd") as session:
            session.evaluate()
    assert caught.value.kind == "protocol"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"dockerfile": "FROM debian:12\nRUN apt-get install -y gcc\n"},
            "RUN, which needs the image",
        ),
        ({"network": "public"}, "has no network"),
    ],
)
def test_a_task_that_needs_more_than_namespaces_is_refused(tmp_path, changes, reason):
    make_task(tmp_path, "real", "Anything.", test=PASS, **changes)
    with pool_of(tmp_path) as pool, pytest.raises(EnvironmentFaultError, match=reason) as caught:
        with pool.session("real"):
            pass
    assert caught.value.kind == "setup"
    assert not caught.value.retryable


def test_a_task_sees_its_files_and_nothing_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_API_KEY", "sk-of-this-process")
    (tmp_path / "near.txt").write_text("of the host")
    copies = "FROM debian:12\nWORKDIR /app\nENV GREETING='a b'\nCOPY seed.txt copied/\n"
    make_task(tmp_path, "looks", "Look.", test=PASS, dockerfile=copies)
    with pool_of(tmp_path) as pool, pool.session("looks") as session:
        assert session.exec("cat copied/seed.txt; echo $GREETING") == "planted\na b"
        assert "sk-of-this-process" not in session.exec("env; cat /proc/*/environ")
        assert "exit status" in session.exec(f"cat {tmp_path}/near.txt")
        assert "exit status" in session.exec("touch /usr/mark")
        assert "exit status" in session.exec("cat /etc/shadow")
        assert session.exec("ls /tests /solution 2>/dev/null | wc -l") == "0"
        # Its first process, and the command itself.
        assert int(session.exec("ls /proc | grep -c '^[0-9]'")) <= 6
        assert "exit status" in session.exec("exec 3<>/dev/tcp/127.0.0.1/22")


def test_links_that_a_task_leaves_are_not_followed_outside(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("of the host")
    make_task(tmp_path, "links", "Look.", test=PASS)
    with pool_of(tmp_path) as pool, pool.session("links") as session:
        session.exec(f"ln -sf {secret} /logs/verifier/test-stdout.txt; ln -sf {secret} /logs/verifier/ctrf.json")
        with_links = None
        try:
            with_links = session.evaluate()
        except EnvironmentFaultError as fault:
            assert "of the host" not in str(fault)
    assert with_links is None or "of the host" not in with_links.feedback


def test_large_outputs_do_not_fill_memory(one):
    with pool_of(one) as pool, pool.session("one") as session:
        assert len(session.exec("head -c 20000000 /dev/zero | tr '\\0' x")) <= 1 << 20


def test_two_tasks_at_once_one_of_them_killed(tmp_path):
    for number in (2, 3):
        make_report(tmp_path, f"report-{number}", number)
    made = []
    pool = pool_of(tmp_path, size=2, made=made)
    outcome = {}
    opened = threading.Barrier(3)

    def work(name, number):
        try:
            with pool.session(name) as session:
                opened.wait(60)
                text = f"{number} squared is {number * number}"
                session.exec(f"sleep 3; echo '{text}' > report.txt; sha256sum < report.txt > report.txt.sha256")
                outcome[name] = session.evaluate().score
        except EnvironmentFaultError as fault:
            outcome[name] = fault.kind

    with pool:
        threads = [threading.Thread(target=work, args=(f"report-{number}", number)) for number in (2, 3)]
        for thread in threads:
            thread.start()
        opened.wait(60)
        os.kill(_worker_of(made[0]), 9)
        for thread in threads:
            thread.join(60)
        assert sorted(outcome.values(), key=str) == [1.0, "lost"]
        # The next attempt gets a new environment.
        with pool.session("report-2") as session:
            assert session.exec("echo back") == "back"


def _worker_of(environment):
    guardian = environment._server.pid
    return int(Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()[0])


def test_nothing_is_left(one, tmp_path_factory, monkeypatch):
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pool_of(one) as pool, pool.session("one") as session:
        session.exec("nohup setsid sleep 5432 > /dev/null 2>&1 & mkdir -p a/b; chmod 0 a")
        assert list(temporary.iterdir())
    deadline = time.monotonic() + 20
    while alive("sleep\x005432") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive("sleep\x005432") == []
    assert list(temporary.iterdir()) == []


def test_containers_of_a_killed_process_are_removed_and_no_others(tmp_path, monkeypatch):
    stub = tmp_path / "docker"
    stub.write_text(
        "#!/bin/bash\n"
        f'echo "$@" >> {tmp_path}/asked\n'
        '[ "$1" = ps ] && printf "a1 combee-1__env\\nb2 somebody-elses\\nc3 combee-1__verifier\\nd4'
        ' \\n"; true\n'
    )
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    remove_containers(["combee-1"])
    assert (tmp_path / "asked").read_text().splitlines()[1:] == ["rm -f -v a1 c3"]
