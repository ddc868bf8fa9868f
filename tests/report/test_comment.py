"""`geval comment`: what it says, and one comment on a pull request that is found again and updated."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, Reply
from support.realistic_runs import COLUMNS, Shape, realistic_report
from support.sample_run import make_case, make_judged, make_report

from geval_cli.extras.pull_requests.comment import comment_text, marker
from geval_cli.extras.pull_requests.markdown_file import TEXT_MAX
from geval_cli.records import CaseResult, Status
from geval_cli.report.report import RunReport

TOKEN = "ghs_ThisIsTheTokenOfTheJob0123456789"


class Host(ThreadingHTTPServer):
    """As much of GitHub's and of GitLab's API as comments need; whoever holds the token writes as `me`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.comments: list[dict[str, Any]] = []
        self.pulls: list[dict[str, Any]] = []
        self.me = "github-actions[bot]"
        self.tells_who = False
        self.is_read_only = False
        self.calls: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, body: str, user: str) -> dict[str, Any]:
        number = len(self.comments) + 1
        made = {"id": number, "body": body, "user": {"login": user}, "author": {"id": user}}
        self.comments.append(made)
        return made


class _Answers(BaseHTTPRequestHandler):
    server: Host

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    do_PATCH = do_PUT = do_POST

    def _answer(self, sent: Any) -> None:
        path, _, query = self.path.partition("?")
        self.server.calls.append(f"{self.command} {path}")
        if TOKEN not in (self.headers.get("private-token"), self.headers.get("authorization", "")[7:]):
            return self._send(401, {"message": "Bad credentials"})
        if path.endswith("/user"):
            user = {"login": self.server.me, "id": self.server.me}
            return self._send(200, user) if self.server.tells_who else self._send(403, {"message": "no"})
        if path.endswith("/pulls"):
            head = re.findall("head=([^&]*)", query)[0].replace("%3A", ":").replace("%2F", "/")
            return self._send(200, [pull for pull in self.server.pulls if pull["head"]["label"] == head])
        if sent is None:
            page = int(re.findall(r"[^_]page=(\d+)", query)[0])
            return self._send(200, self.server.comments[100 * (page - 1) : 100 * page])
        if self.server.is_read_only:
            return self._send(403, {"message": f"Resource not accessible by integration {TOKEN}"})
        if self.command == "POST":
            made = self.server.add(sent["body"], self.server.me)
            return self._send(201, {**made, "html_url": f"https://host.example/c/{made['id']}"})
        found = self.server.comments[int(path.rsplit("/", 1)[1]) - 1]
        found["body"] = sent["body"]
        return self._send(200, found)

    def _send(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as server:
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `main.json` and `head.json`, in which four of twenty answers became worse."""
    folder = tmp_path_factory.mktemp("results")
    for name, bad in (("main", 0), ("head", 4)):
        tests = [
            {
                "vars": {"question": f"Question {number}"},
                "output": f"It takes two days. {'Ask somebody else.' if number < bad else 'Happy to help!'}",
                "assert": [{"type": "contains", "value": "Happy", "metric": "tone"}],
            }
            for number in range(20)
        ]
        (folder / "evals.yaml").write_text(yaml.safe_dump({"tests": tests}))
        run_geval("run", "evals.yaml", "-o", f"{name}.json", cwd=folder)
    return folder


def github(host: Host, folder: Path, event: Any, **more: str) -> dict[str, str]:
    (folder / "event.json").write_text(json.dumps(event))
    return clean_environment(
        GITHUB_API_URL=host.url,
        GITHUB_REPOSITORY="octo/app",
        GITHUB_EVENT_PATH=str(folder / "event.json"),
        GITHUB_TOKEN=TOKEN,
        **more,
    )


def test_the_comment_names_the_decision_the_broken_case_and_its_diff(results: Path) -> None:
    done = run_geval("comment", "head.json", "--baseline", "main.json", cwd=results)
    text = done.stdout

    assert done.code == 0, done.stderr
    assert text.startswith("<!-- geval: evals.yaml -->\n### ❌ geval: `evals.yaml` failed\n")
    assert "**This pull request is worse than the baseline: " in text
    assert "`the baseline`" not in text
    assert "100\u00a0% | 80\u00a0% | -20\u00a0pts" in text
    assert "16 passed · 4 failed" in text
    assert "Worst changes</summary>" in text
    assert "passed → failed" in text
    assert "```diff\n It takes two days.\n-Happy to help!\n+Ask somebody else.\n```" in text


def test_without_a_baseline_or_with_another_suite_nothing_is_compared(results: Path, tmp_path: Path) -> None:
    alone = run_geval("comment", "head.json", "--baseline", "none", cwd=results).stdout
    assert "16 passed · 4 failed" in alone
    assert "|" not in alone
    (tmp_path / "other.yaml").write_text(
        yaml.safe_dump(
            {"tests": [{"vars": {"x": "else"}, "output": "a", "assert": [{"type": "equals", "value": "a"}]}]}
        )
    )
    run_geval("run", "other.yaml", "-o", "other.json", cwd=tmp_path)
    done = run_geval("comment", "head.json", "--baseline", str(tmp_path / "other.json"), cwd=results)
    assert done.code == 0
    assert "Not compared with the baseline: " in done.stdout


def test_a_comment_is_posted_once_and_then_updated(host: Host, results: Path, tmp_path: Path) -> None:
    for number in range(120):
        host.add(f"comment {number}", "ana")
    forged = host.add(marker("evals.yaml") + "\nlooks like ours", "mallory")
    env = github(host, tmp_path, {"pull_request": {"number": 12}}, GITHUB_BASE_REF="trunk")

    first = run_geval("comment", "main.json", "--post", cwd=results, env=env)
    assert (first.code, first.stdout) == (0, "commented on octo/app#12 https://host.example/c/122\n")
    again = run_geval("comment", "head.json", "--baseline", "main.json", "--post", cwd=results, env=env)
    assert again.code == 0, again.stderr

    assert len(host.comments) == 122
    assert "than `trunk`" in host.comments[-1]["body"]
    assert forged["body"].endswith("looks like ours")
    assert host.calls[-1] == "PATCH /repos/octo/app/issues/comments/122"

    run_geval("comment", "head.json", "--post", "--name", "nightly", cwd=results, env=env)
    assert len(host.comments) == 123


def test_a_push_that_runs_nothing_replaces_the_comment_on_the_one_before(
    host: Host, results: Path, tmp_path: Path
) -> None:
    env = github(host, tmp_path, {"pull_request": {"number": 12}})
    assert run_geval("comment", "main.json", "--post", cwd=results, env=env).code == 0
    done = run_geval("comment", "--failed", "--name", "./evals.yaml", "--post", cwd=results, env=env)
    assert done.code == 0, done.stderr
    [comment] = host.comments
    assert comment["body"].startswith(marker("evals.yaml"))
    assert "`evals.yaml` was not run" in comment["body"]
    assert "passed" not in comment["body"]


@pytest.mark.parametrize(
    "name", ["evals.yaml", "./evals.yaml", "evals/", "'my evals.yaml'", "a.yaml  b.yaml"]
)
def test_a_name_is_that_of_one_comment_whether_or_not_anything_was_run(name: str, results: Path) -> None:
    heads = {
        run_geval("comment", *words, "--name", name, cwd=results).stdout.partition("\n")[0]
        for words in (["main.json"], ["--failed"])
    }
    assert heads == {marker(str(Path(name)))}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--failed",), "--failed needs a name"),
        (("--failed", "--name", "a", "--baseline", "b.json"), "--baseline cannot be combined with --failed"),
    ],
)
def test_a_run_that_failed_is_named_and_compared_with_nothing(
    results: Path, words: tuple[str, ...], said: str
) -> None:
    done = run_geval("comment", *words, cwd=results)
    assert done.code == 2
    assert said in done.stderr


def test_a_forks_pull_request_is_found_by_the_commit_that_was_evaluated(
    host: Host, results: Path, tmp_path: Path
) -> None:
    event = {
        "workflow_run": {
            "head_branch": "feature/x",
            "head_sha": "a" * 40,
            "head_repository": {"owner": {"login": "fork"}},
            "html_url": "https://host.example/runs/7",
        }
    }
    host.pulls = [
        {"number": 3, "head": {"label": "fork:feature/x", "sha": "b" * 40}},
        {"number": 4, "head": {"label": "else:feature/x", "sha": "a" * 40}},
        {"number": 5, "head": {"label": "fork:feature/x", "sha": "a" * 40}},
    ]
    env = github(host, tmp_path, event)
    done = run_geval("comment", "head.json", "--post", cwd=results, env=env)
    assert done.stdout.startswith("commented on octo/app#5")
    assert "[full report](https://host.example/runs/7)" in host.comments[0]["body"]

    host.pulls.pop()
    done = run_geval("comment", "head.json", "--post", cwd=results, env=env)
    assert done.code == 2
    assert "no open pull request ends with the evaluated commit aaaaaaaaaaaa" in done.stderr
    assert len(host.comments) == 1


def test_gitlabs_merge_request_gets_one_comment(host: Host, results: Path) -> None:
    host.tells_who, host.me = True, "project_bot"
    env = clean_environment(
        GITLAB_CI="true",
        CI_API_V4_URL=f"{host.url}/api/v4",
        CI_PROJECT_ID="77",
        CI_MERGE_REQUEST_IID="9",
        CI_JOB_URL="https://lab.example/jobs/1",
        CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main",
        GITLAB_TOKEN=TOKEN,
    )
    for _ in range(2):
        done = run_geval("comment", "head.json", "--baseline", "main.json", "--post", cwd=results, env=env)
        assert (done.code, done.stdout) == (0, "commented on 77!9\n"), done.stderr
    assert len(host.comments) == 1
    assert host.calls[-1] == "PUT /api/v4/projects/77/merge_requests/9/notes/1"


@pytest.mark.parametrize(
    ("event", "changes", "said"),
    [
        ({}, {}, "not started by a pull request"),
        ({"pull_request": {"number": 1}}, {"GITHUB_TOKEN": ""}, "GITHUB_TOKEN is not set"),
        (
            {"pull_request": {"number": 1}},
            {"GITHUB_TOKEN": "wrong-token-0123456789"},
            "cannot comment on octo/app#1",
        ),
        ({"pull_request": {"number": 1}}, {"GITHUB_REPOSITORY": ""}, "neither GitHub's nor GitLab's CI"),
        ({"pull_request": "x"}, {}, "not an event of a pull request"),
        ({"workflow_run": 3}, {}, "not an event of a pull request"),
        (
            {"workflow_run": {"head_repository": None, "head_branch": "b", "head_sha": "c"}},
            {},
            "fork that was evaluated was deleted",
        ),
        ({}, {"GITLAB_CI": "true"}, "GITLAB_TOKEN is not set"),
        ({}, {"GITLAB_CI": "true", "GITLAB_TOKEN": TOKEN}, "no pipeline of a merge request"),
    ],
)
def test_what_is_missing_is_said(
    host: Host, results: Path, tmp_path: Path, event: Any, changes: dict[str, str], said: str
) -> None:
    env = {**github(host, tmp_path, event), **changes}
    done = run_geval("comment", "head.json", "--post", cwd=results, env=env)
    assert done.code == 2
    assert said in done.stderr
    assert "\n    = " in done.stderr
    assert host.comments == []


@pytest.mark.parametrize("body", [b"<html>sign in</html>", b'{"message": "ok"}', b"[3]", b"null", b""])
def test_a_host_that_is_not_github_is_said(results: Path, tmp_path: Path, body: bytes) -> None:
    with LoopbackServer(respond=lambda sent, headers: Reply(body=body)) as server:
        env = clean_environment(GITHUB_REPOSITORY="octo/app", GITHUB_TOKEN=TOKEN, GITHUB_API_URL=server.url)
        done = run_geval("comment", "head.json", "--post", "--pr", "8", cwd=results, env=env)
    assert (done.code, f"error: {server.url} does not answer like GitHub's API" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("status", "body", "said", "code"),
    [
        (422, {"message": "Body is too long"}, "HTTP 422: Body is too long", 2),
        (201, [], "does not answer like", 3),
    ],
)
def test_a_comment_that_is_not_taken_is_told_without_a_word_of_rights(
    results: Path, tmp_path: Path, status: int, body: Any, said: str, code: int
) -> None:
    replies = [Reply(body={"login": "me"}), Reply(body=[]), Reply(status=status, body=body)]
    with LoopbackServer(*replies) as server:
        env = clean_environment(GITHUB_REPOSITORY="octo/app", GITHUB_TOKEN=TOKEN, GITHUB_API_URL=server.url)
        done = run_geval("comment", "head.json", "--post", "--pr", "8", cwd=results, env=env)
    assert (done.code, said in done.stderr, "permissions" in done.stderr) == (code, True, False), done.stderr


def test_a_comment_of_a_deleted_user_is_passed_over(host: Host, results: Path, tmp_path: Path) -> None:
    host.add(marker("evals.yaml"), "ghost")["user"] = None
    env = github(host, tmp_path, {"pull_request": {"number": 12}})
    done = run_geval("comment", "head.json", "--post", cwd=results, env=env)
    assert (done.code, len(host.comments)) == (0, 2), done.stderr


def test_a_hostile_results_file_makes_no_markup_and_no_huge_comment(results: Path, tmp_path: Path) -> None:
    for evil in ("@octo\n\n</details><img src=x> [a](http://e/) ![b](c) `\n```\n\x1b[31m", "`<b>`" * 40_000):
        found = json.loads((results / "head.json").read_text())
        found["run"] |= {"id": evil, "config_path": evil}
        found["summary"]["gates"] = [{"gate": evil, "status": "failed", "actual": 0.1, "note": evil}]
        for column in found["summary"]["columns"]:
            column |= {"prompt": evil, "provider": evil, "label": evil}
        for result in found["results"]:
            result |= {"description": evil, "output": evil}
            result["assertions"][0] |= {"metric": evil, "reason": evil}
        (tmp_path / "evil.json").write_text(json.dumps(found))
        for more in (("--baseline", "main.json"), ("--baseline", str(tmp_path / "evil.json")), ()):
            done = run_geval("comment", str(tmp_path / "evil.json"), *more, cwd=results)
            assert (done.code, len(done.stdout) < TEXT_MAX, "\x1b" in done.stdout) == (0, True, False), (
                done.stderr
            )
            tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(done.stdout)
            flat = [item for token in tokens for item in (token, *(token.children or ()))]
            assert not [item for item in flat if item.type in {"link_open", "image"}]
            assert not [item for item in flat if item.type == "text" and "@octo" in item.content]
            html = [item.content for item in flat if item.type in {"html_block", "html_inline"}]
            assert not [text for text in html if re.search("<img|<b>", text)]


def test_a_token_that_may_not_write_is_explained_and_not_shown(
    host: Host, results: Path, tmp_path: Path
) -> None:
    host.is_read_only = True
    done = run_geval(
        "comment", "head.json", "--post", "--pr", "8", cwd=results, env=github(host, tmp_path, {})
    )
    assert done.code == 2
    assert "cannot comment on octo/app#8" in done.stderr
    assert "pull-requests: write" in done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_a_comment_on_a_large_run_fits() -> None:
    text = comment_text(realistic_report(), realistic_report(Shape(drift=0.1)))
    assert text.count("```diff") == 5
    assert len(text) < TEXT_MAX // 2


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((12, 3), (8, 3), "- changed: `4 tests removed`"),
        ((8, 3), (12, 3), "- changed: `4 tests added`"),
        ((8, 3), (8, 2), "- 1 column only in `main`: `"),
        ((8, 1), (8, 3), "- 2 columns only in this pull request: `"),
        ((8, 3), (8, 3), ""),
    ],
)
def test_a_comment_says_what_only_one_side_has(
    before: tuple[int, int], after: tuple[int, int], said: str
) -> None:
    runs = [realistic_report(Shape(tests=tests, columns=COLUMNS[:count])) for tests, count in (before, after)]
    lines = [line for line in comment_text(runs[1], runs[0], base="main").split("\n") if line[:2] == "- "]
    of_sides = [line for line in lines if "changed:" in line or "only in" in line]
    assert [line[: len(said)] for line in of_sides] == ([said] if said else [])


def run_of(case: CaseResult) -> RunReport:
    return make_report(results=lambda: iter([case]), columns=make_report().columns[:1])


def marks_outside_code(text: str, status: Status = Status.FAILED) -> list[str]:
    """Return what could be markup in a comment whose case became worse, with `text` wherever a model writes."""

    def case(output: str, status: Status) -> CaseResult:
        judged = make_judged(status, 0.1 if status is Status.FAILED else 0.9, metric="m" + text, reason=text)
        return make_case(0, status=status, output=output, description="d" + text, assertions=(judged,))

    comment = comment_text(run_of(case(text + " b", status)), run_of(case("a " + text, Status.PASSED)))
    no_blocks = re.sub(r"^(`{3,})diff\n.*?^\1$", "", comment, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"[@<\[\]#!]", re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", no_blocks))


@settings(max_examples=40)
@given(
    st.text()
    | st.sampled_from(
        ["@team", "![x](http://a)", "</details>", "```\n# big", "a`b``c", "a`<b>`", "| x |", "<!-- -->"]
    )
)
def test_nothing_that_a_model_says_is_markup_in_a_comment(text: str) -> None:
    assert marks_outside_code(text) == marks_outside_code("plain")


@given(st.text())
def test_a_marker_is_one_line_that_ends_its_own_html_comment(name: str) -> None:
    assert re.fullmatch(r"<!-- geval: [A-Za-z0-9._/ -]* -->", marker(name))
    assert "--" not in marker(name)[4:-3]
    assert marker(name) != marker(name + "\u6587")
