"""The editor's requests, without a browser: what is listed, checked, saved and refused."""

import json
import os
import re
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.web_server import HttpAnswer, RunningServer, running_server

from geval_cli.extras.json_schema import config_json_schema

SUITE = dedent("""\
    # Kept, as is every comment
    prompts:
      - id: one
        raw: "{{ input }}" # the prompt
    providers: [echo]
    tests:
      - input: Hello
        assert:
          - type: equals
            value: Hello
    """)


class Editor:
    """A served folder with one suite, and the requests that its page sends."""

    def __init__(self, server: RunningServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.path = folder / "suite.yaml"

    @property
    def text(self) -> str:
        return self.path.read_bytes().decode("utf-8")

    def asked(self, text: str = SUITE) -> dict[str, Any]:
        return {"path": "suite.yaml", "digest": digest(self.path), "text": text}

    def check(self, text: str = SUITE) -> Any:
        answer = self.server.post("/suites/check", self.asked(text))
        assert answer.status == 200
        return answer.json

    def save(self, text: str = "", *, asked: dict[str, Any] | None = None) -> HttpAnswer:
        return self.server.post("/suites/save", asked or self.asked(text))


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


LABELLED = SUITE.replace("- id: one\n", "- id: one\n    label: mine\n")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.data = ""
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script" and ("id", "suite") in attrs

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.data += data
        else:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False


def read_page(answer: HttpAnswer) -> _Page:
    page = _Page()
    page.feed(answer.text)
    return page


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture
def editor(server: RunningServer) -> Editor:
    folder = server.settings.folder
    for path in folder.rglob("*"):
        if (path.is_file() or path.is_symlink()) and ".geval" not in path.parts:
            path.unlink()
    found = Editor(server, folder)
    found.path.write_text(SUITE, encoding="utf-8")
    return found


class TestList:
    def test_what_is_no_file_or_has_no_address_is_passed_over(self, editor: Editor) -> None:
        os.mkfifo(editor.folder / "pipe.yaml")
        (editor.folder / "folder.yaml").mkdir(exist_ok=True)
        Path(os.fsdecode(os.fsencode(editor.folder) + b"/\xff.yaml")).write_text(SUITE, encoding="utf-8")
        answer = editor.server.get("/suites")
        (editor.folder / "pipe.yaml").unlink()
        assert answer.status == 200
        assert re.findall(r"edit\?path=([^\"]+)", answer.text) == ["suite.yaml"] * 2

    def test_suites_are_listed_with_what_they_hold(self, editor: Editor) -> None:
        (editor.folder / "below").mkdir(exist_ok=True)
        (editor.folder / "below" / "more.json").write_text(
            '{"tests": "file://t.jsonl", "description": "<b>deep</b>"}'
        )
        page = read_page(editor.server.get("/suites"))
        assert "suite.yaml" in page.text
        assert "below/more.json" in page.text
        assert "<b>deep</b>" in page.text
        assert "in a file" in page.text

    def test_other_files_are_not(self, editor: Editor) -> None:
        (editor.folder / "replies.yaml").write_text("- a\n")
        (editor.folder / "results.json").write_text('{"results": [], "tests": []}')
        (editor.folder / ".hidden.yaml").write_text(SUITE)
        (editor.folder / "node_modules").mkdir(exist_ok=True)
        (editor.folder / "node_modules" / "dependency.yaml").write_text(SUITE)
        text = read_page(editor.server.get("/suites")).text
        assert not [name for name in ("replies", "results.json", "hidden", "dependency") if name in text]

    def test_promptfoo_configs_are_shown_as_read_only(self, editor: Editor) -> None:
        (editor.folder / "promptfooconfig.yaml").write_text("prompts: [a]\ntests: [{vars: {x: 1}}]\n")
        assert "read only" in editor.server.get("/suites").text
        answer = editor.server.get("/suites/edit?path=promptfooconfig.yaml")
        assert answer.status == 422
        assert "promptfoo" in answer.text

    def test_broken_configs_are_shown_as_such(self, editor: Editor) -> None:
        (editor.folder / "gevalconfig.yaml").write_text("tests: [a\n")
        assert "cannot be read" in editor.server.get("/suites").text
        page = json.loads(read_page(editor.server.get("/suites/edit?path=gevalconfig.yaml")).data)
        assert page["text"] == "tests: [a\n"
        (editor.folder / "other.yaml").write_text("tests: [a\n")
        assert editor.server.get("/suites/edit?path=other.yaml").status == 422

    def test_an_empty_folder_says_what_to_do(self, editor: Editor) -> None:
        editor.path.unlink()
        assert "geval init" in editor.server.get("/suites").text


class TestPage:
    def test_it_holds_the_suite(self, editor: Editor) -> None:
        page = json.loads(read_page(editor.server.get("/suites/edit?path=suite.yaml")).data)
        assert page["digest"] == digest(editor.path)
        assert page["text"] == SUITE

    def test_what_a_suite_says_stays_text(self, editor: Editor) -> None:
        editor.path.write_text("prompts: ['</script><script>alert(1)</script>']\nproviders: [echo]\n")
        answer = editor.server.get("/suites/edit?path=suite.yaml")
        assert "<script>alert" not in answer.text
        assert "</script><script>alert" in json.loads(read_page(answer).data)["text"]

    @pytest.mark.parametrize(
        ("name", "status"),
        [
            ("none.yaml", 404),
            ("../outside.yaml", 403),
            ("/etc/passwd", 403),
            (".geval/x.yaml", 404),
            ("a%00b", 404),
        ],
    )
    def test_other_files_are_refused(self, editor: Editor, name: str, status: int) -> None:
        assert editor.server.get(f"/suites/edit?path={name}").status == status

    def test_a_link_out_of_the_folder_is_refused(self, editor: Editor, tmp_path: Path) -> None:
        (tmp_path / "outside.yaml").write_text(SUITE)
        (editor.folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
        assert editor.server.get("/suites/edit?path=link.yaml").status == 403

    def test_a_suite_that_could_be_neither_checked_nor_saved_is_refused(self, editor: Editor) -> None:
        most = editor.server.settings.max_body_bytes
        (editor.folder / "large.yaml").write_text(
            SUITE + "# \U0001f600 more\n" * (most // 12), encoding="utf-8"
        )
        found = editor.server.get("/suites/edit?path=large.yaml")
        assert (found.status, "large.yaml is too large for this page" in found.text) == (413, True)

    def test_files_that_are_no_suites_are_refused(self, editor: Editor) -> None:
        (editor.folder / "compose.yaml").write_text("services: {}\n")
        (editor.folder / ".ci.yaml").write_text(SUITE)
        assert editor.server.get("/suites/edit?path=compose.yaml").status == 404
        assert editor.server.get("/suites/edit?path=.ci.yaml").status == 403


class TestCheck:
    def test_a_sound_draft_has_no_problems(self, editor: Editor) -> None:
        found = editor.check()
        assert found == {"changed_on_disk": False, "problems": [], "difference": ""}

    def test_problems_have_the_place_that_validate_would_name(self, editor: Editor) -> None:
        broken = SUITE.replace("type: equals", "type: equal").replace(
            "raw:", "evaluation_mode: none\n    raw:"
        )
        found = editor.check(broken)
        assert [(item["line"], item["column"], item["key_path"]) for item in found["problems"]] == [
            (4, 22, "prompts[0].evaluation_mode"),
            (10, 15, "tests[0].assert[0].type"),
        ]
        assert "+    evaluation_mode: none" in found["difference"].split("\n")

    def test_gates_and_the_baseline_are_checked_like_all_else(self, editor: Editor) -> None:
        [problem] = editor.check(SUITE + "gates: [pass_rat >= 80%]\n")["problems"]
        assert (problem["line"], "pass_rat" in problem["message"]) == (11, True)

    def test_text_that_is_no_yaml_is_told_at_its_line(self, editor: Editor) -> None:
        [problem] = editor.check(SUITE + "  - odd: [\n")["problems"]
        assert problem["line"] in {11, 12}

    def test_a_problem_of_another_file_names_that_file(self, editor: Editor) -> None:
        broken = '{"input": "a"}\n{"input": "b", "assert": [{"type": "nope"}]}\n'
        (editor.folder / "more.jsonl").write_text(broken, encoding="utf-8")
        text = SUITE.replace("tests:\n", "tests:\n  - file://more.jsonl\n")
        [problem] = editor.check(text)["problems"]
        assert "nope" in problem["message"]
        assert (problem["file"], problem["line"], problem["key_path"]) == ("more.jsonl", 2, "")

    def test_a_change_on_disk_is_noticed(self, editor: Editor) -> None:
        asked = editor.asked()
        editor.path.write_text(SUITE + "# theirs\n")
        found = editor.server.post("/suites/check", asked).json
        assert (found["changed_on_disk"], found["problems"]) == (True, [])

    def test_the_schema_is_that_of_the_command(self, editor: Editor) -> None:
        found = editor.server.get("/suites/schema.json").json
        assert found == config_json_schema()

    def test_requests_of_another_shape_are_refused(self, editor: Editor) -> None:
        assert editor.server.post("/suites/check", {"path": "suite.yaml"}).status == 422
        assert editor.server.post("/suites/check", {**editor.asked(), "digest": "x"}).status == 422
        assert editor.server.send("POST", "/suites/check", b"{", {"content_type": "text/plain"}).status == 415


class TestSave:
    @pytest.mark.parametrize(
        "content",
        [
            SUITE.encode(),
            b"\xef\xbb\xbf" + SUITE.replace("\n", "\r\n").encode(),
            SUITE.replace("Hello\n", "Hello\r\n").encode(),
            SUITE.rstrip().encode(),
        ],
        ids=["plain", "of Windows", "of both kinds", "without an end"],
    )
    def test_what_was_typed_is_saved_to_the_byte(self, editor: Editor, content: bytes) -> None:
        editor.path.write_bytes(content)
        page = json.loads(read_page(editor.server.get("/suites/edit?path=suite.yaml")).data)
        answer = editor.save(page["text"].replace("Hello", "H\u00e9llo"))
        assert answer.status == 200
        assert editor.path.read_bytes() == content.replace(b"Hello", "H\u00e9llo".encode())
        assert answer.json["digest"] == digest(editor.path)

    def test_the_mode_of_the_file_stays(self, editor: Editor) -> None:
        editor.path.chmod(0o640)
        assert editor.save(LABELLED).status == 200
        assert stat.S_IMODE(editor.path.stat().st_mode) == 0o640
        assert list(editor.folder.glob(".suite*")) == []

    def test_a_link_within_the_folder_stays_a_link(self, editor: Editor) -> None:
        (editor.folder / "link.yaml").symlink_to(editor.path)
        assert editor.save(asked={**editor.asked(LABELLED), "path": "link.yaml"}).status == 200
        assert (editor.folder / "link.yaml").is_symlink()
        assert editor.text == LABELLED

    def test_a_file_that_changed_on_disk_is_not_overwritten(self, editor: Editor) -> None:
        asked = editor.asked(LABELLED)
        theirs = SUITE + "# theirs\n"
        editor.path.write_text(theirs)
        answer = editor.save(asked=asked)
        assert answer.status == 409
        assert "changed on disk" in answer.json["detail"]
        assert editor.text == theirs
        assert answer.json["digest"] == digest(editor.path)

    def test_of_several_at_once_one_is_saved(self, editor: Editor) -> None:
        asked = [editor.asked(SUITE + f"# by {number}\n") for number in range(4)]
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda one: editor.save(asked=one), asked))
        assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]
        (saved,) = (number for number, answer in enumerate(answers) if answer.status == 200)
        assert editor.text == SUITE + f"# by {saved}\n"

    def test_ones_own_version_can_be_kept(self, editor: Editor) -> None:
        editor.path.write_text("tests: [broken\n")
        assert editor.save(LABELLED).status == 200
        assert editor.text == LABELLED

    def test_a_file_that_is_gone_is_not_made_again(self, editor: Editor) -> None:
        asked = editor.asked(LABELLED)
        editor.path.unlink()
        assert editor.save(asked=asked).status == 404
        assert not editor.path.exists()

    def test_a_suite_with_problems_is_saved_only_when_asked_for(self, editor: Editor) -> None:
        asked = editor.asked(SUITE + "gate: 1\n")
        answer = editor.save(asked=asked)
        assert (answer.status, answer.json["is_readable"]) == (422, True)
        assert "gate" in answer.json["problems"][0]["message"]
        assert editor.text == SUITE
        assert editor.save(asked={**asked, "anyway": True}).status == 200
        assert editor.text == SUITE + "gate: 1\n"

    @pytest.mark.parametrize("text", ["prompts: [", "- a\n", "services: {}\n", ""])
    def test_what_is_no_suite_is_never_saved(self, editor: Editor, text: str) -> None:
        answer = editor.save(asked={**editor.asked(text), "anyway": True})
        assert answer.status == 422
        assert answer.json["detail"].startswith("nothing was saved: this ")
        assert editor.text == SUITE

    def test_what_is_no_suite_is_never_overwritten(self, editor: Editor) -> None:
        path = editor.folder / "compose.yaml"
        path.write_text("services: {}\n")
        asked = {"path": "compose.yaml", "digest": digest(path), "text": SUITE, "anyway": True}
        assert editor.save(asked=asked).status == 404
        assert path.read_text() == "services: {}\n"

    def test_a_read_only_file_is_left_alone(self, editor: Editor) -> None:
        editor.path.chmod(0o444)
        answer = editor.save(LABELLED)
        editor.path.chmod(0o644)
        assert answer.status == 403
        assert "read-only" in answer.json["detail"]
        assert "chmod u+w" in answer.json["hint"]
        assert editor.text == SUITE

    @pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_that_cannot_be_written_to_says_so(self, editor: Editor) -> None:
        editor.folder.chmod(0o555)
        answer = editor.save(LABELLED)
        editor.folder.chmod(0o755)
        assert answer.status == 403
        assert "still on this page" in answer.json["hint"]

    def test_text_that_no_file_can_hold_is_refused(self, editor: Editor) -> None:
        asked = json.dumps(editor.asked(SUITE + "# half \ud83d"))
        answer = editor.server.send(
            "POST", "/suites/save", asked.encode(), {"content_type": "application/json"}
        )
        assert answer.status in {400, 422}
        assert editor.text == SUITE

    def test_other_sites_cannot_save(self, editor: Editor) -> None:
        answer = editor.server.post("/suites/save", editor.asked(LABELLED), origin="http://evil.example")
        assert answer.status == 403
        assert editor.text == SUITE


class TestNew:
    def test_it_is_made_and_can_be_edited(self, editor: Editor) -> None:
        answer = editor.server.post("/suites/new", {"path": "support"})
        assert (answer.status, answer.json) == (201, {"path": "support.yaml"})
        assert editor.server.get("/suites/edit?path=support.yaml").status == 200

    @pytest.mark.parametrize(
        ("name", "status"),
        [
            ("suite.yaml", 409),
            ("../x.yaml", 422),
            ("out/x.yaml", 403),
            (".x.yaml", 422),
            ("no/x.yaml", 404),
            ("  ", 422),
            (".yaml", 422),
            ("two\nlines.yaml", 422),
        ],
    )
    def test_other_names_are_refused(self, editor: Editor, tmp_path: Path, name: str, status: int) -> None:
        (editor.folder / "out").unlink(missing_ok=True)
        (editor.folder / "out").symlink_to(tmp_path)
        answer = editor.server.post("/suites/new", {"path": name})
        assert answer.status == status
        assert answer.json["detail"]
        assert editor.text == SUITE
