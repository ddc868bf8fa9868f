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

    def asked(self, **draft: Any) -> dict[str, Any]:
        return {"path": "suite.yaml", "digest": digest(self.path), "draft": draft}

    def check(self, **draft: Any) -> Any:
        answer = self.server.post("/suites/check", self.asked(**draft))
        assert answer.status == 200
        return answer.json

    def save(self, *, asked: dict[str, Any] | None = None, **draft: Any) -> HttpAnswer:
        return self.server.post("/suites/save", asked or self.asked(**draft))


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def only(index: int = 0, **fields: str) -> list[dict[str, Any]]:
    """A list of one item, which was there before, with these fields."""
    return [{"origin": index, "fields": fields}]


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
        if path.is_file() and ".geval" not in path.parts:
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
        answer = editor.server.get("/suites/edit?path=gevalconfig.yaml")
        assert answer.status == 422
        assert "column" in answer.text

    def test_an_empty_folder_says_what_to_do(self, editor: Editor) -> None:
        editor.path.unlink()
        assert "geval init" in editor.server.get("/suites").text


class TestPage:
    def test_it_holds_the_suite(self, editor: Editor) -> None:
        page = json.loads(read_page(editor.server.get("/suites/edit?path=suite.yaml")).data)
        assert page["digest"] == digest(editor.path)
        assert page["text"] == SUITE
        assert page["form"]["prompts"][0]["fields"]["body"] == "{{ input }}"

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

    def test_files_that_are_no_suites_are_refused(self, editor: Editor) -> None:
        (editor.folder / "compose.yaml").write_text("services: {}\n")
        (editor.folder / ".ci.yaml").write_text(SUITE)
        assert editor.server.get("/suites/edit?path=compose.yaml").status == 404
        assert editor.server.get("/suites/edit?path=.ci.yaml").status == 403


class TestCheck:
    def test_a_sound_draft_has_no_problems(self, editor: Editor) -> None:
        found = editor.check()
        assert found == {"changed_on_disk": False, "problems": [], "difference": ""}

    def test_problems_have_their_field_and_the_place_that_validate_would_name(self, editor: Editor) -> None:
        (found,) = editor.check(tests=only(input="Hello", more="thresold: 1"))["problems"]
        assert "unknown key `thresold`" in found["message"]
        assert (found["list"], found["index"]) == ("tests", 0)
        assert (found["line"], found["column"]) == (11, 5)
        assert "threshold" in found["hint"]

    def test_json_is_parsed_and_its_schema_checked(self, editor: Editor) -> None:
        broken = editor.check(tests=only(evaluation_schema='{"type": }'))["problems"][0]
        assert (broken["field"], broken["in_field"], broken["line"], broken["column"]) == (
            "evaluation_schema",
            True,
            1,
            10,
        )
        draft = {
            "prompts": only(evaluation_mode="schema"),
            "tests": only(evaluation_schema='{"type": "objekt"}'),
        }
        (odd,) = editor.check(**draft)["problems"]
        assert (odd["field"], odd["in_field"]) == ("evaluation_schema", False)
        assert "objekt" in odd["message"]

    def test_assertions_and_templates_are_checked(self, editor: Editor) -> None:
        draft = {
            "prompts": only(body="{{ missing }}"),
            "tests": only(**{"assert": "- type: equal\n  value: x"}),
        }
        fields = {problem["field"] for problem in editor.check(**draft)["problems"]}
        assert fields == {"body", "assert"}

    def test_a_schema_that_no_prompt_uses_is_a_warning(self, editor: Editor) -> None:
        (found,) = editor.check(tests=only(evaluation_schema='{"type": "object"}'))["problems"]
        assert (found["severity"], found["field"]) == ("warning", "evaluation_schema")

    def test_the_difference_to_the_file_is_shown(self, editor: Editor) -> None:
        lines = editor.check(prompts=only(label="One"))["difference"].split("\n")
        assert [line for line in lines if line[0] in "+-"] == ["+    label: One"]

    def test_a_change_on_disk_is_noticed(self, editor: Editor) -> None:
        asked = editor.asked()
        editor.path.write_text(SUITE + "# theirs\n")
        assert editor.server.post("/suites/check", asked).json["changed_on_disk"] is True
        with_base = editor.server.post("/suites/check", {**asked, "base": SUITE}).json
        assert (with_base["changed_on_disk"], with_base["problems"]) == (True, [])

    def test_requests_of_another_shape_are_refused(self, editor: Editor) -> None:
        assert editor.server.post("/suites/check", {"path": "suite.yaml"}).status == 422
        assert editor.server.post("/suites/check", {**editor.asked(), "digest": "x"}).status == 422
        assert editor.server.send("POST", "/suites/check", b"{", {"content_type": "text/plain"}).status == 415


class TestSave:
    def test_only_what_changed_changes_in_the_file(self, editor: Editor) -> None:
        answer = editor.save(prompts=only(body="Say {{ input }}"))
        assert answer.status == 200
        assert editor.text == SUITE.replace('"{{ input }}"', '"Say {{ input }}"')
        assert answer.json["digest"] == digest(editor.path)
        assert answer.json["form"]["prompts"][0]["fields"]["body"] == "Say {{ input }}"

    def test_files_of_tests_between_tests_stay_as_they_are(self, editor: Editor) -> None:
        (editor.folder / "t.csv").write_text("input,assert.equals,a\nfrom a table,from a table,b\n")
        mixed = SUITE.replace(
            "tests:\n", "tests:\n  - path: file://t.csv # the table\n    columns: {a: b}\n  - file://t.csv\n"
        )
        editor.path.write_text(mixed, encoding="utf-8")
        page = json.loads(read_page(editor.server.get("/suites/edit?path=suite.yaml")).data)
        assert [item["is_editable"] for item in page["form"]["tests"]] == [False, False, True]
        tests = [{"origin": index, "fields": {}} for index in range(3)]
        tests[2]["fields"] = {"input": "Hi"}
        assert editor.check(tests=tests)["problems"] == []
        assert editor.save(tests=tests).status == 200
        assert editor.text == mixed.replace("input: Hello", "input: Hi")
        assert "in a file" in read_page(editor.server.get("/suites")).text

    def test_nothing_changed_keeps_every_byte(self, editor: Editor) -> None:
        editor.path.write_bytes(b"\xef\xbb\xbf" + SUITE.replace("\n", "\r\n").encode())
        before = editor.path.read_bytes()
        assert editor.save(prompts=only(), tests=only()).status == 200
        assert editor.path.read_bytes() == before

    def test_the_mode_of_the_file_stays(self, editor: Editor) -> None:
        editor.path.chmod(0o640)
        assert editor.save(prompts=only(label="x")).status == 200
        assert stat.S_IMODE(editor.path.stat().st_mode) == 0o640
        assert list(editor.folder.glob(".suite*")) == []

    def test_a_link_within_the_folder_stays_a_link(self, editor: Editor) -> None:
        (editor.folder / "link.yaml").symlink_to(editor.path)
        assert editor.save(asked={**editor.asked(prompts=only(label="x")), "path": "link.yaml"}).status == 200
        assert (editor.folder / "link.yaml").is_symlink()
        assert "label: x" in editor.text

    def test_a_file_that_changed_on_disk_is_not_overwritten(self, editor: Editor) -> None:
        asked = editor.asked(prompts=only(label="mine"))
        theirs = SUITE + "# theirs\n"
        editor.path.write_text(theirs)
        answer = editor.save(asked=asked)
        assert answer.status == 409
        assert "changed on disk" in answer.json["detail"]
        assert editor.text == theirs
        assert answer.json["digest"] == digest(editor.path)

    def test_of_several_at_once_one_is_saved(self, editor: Editor) -> None:
        asked = [editor.asked(prompts=only(label=f"by {number}")) for number in range(4)]
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda one: editor.save(asked=one), asked))
        assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]
        (saved,) = (number for number, answer in enumerate(answers) if answer.status == 200)
        assert f"label: by {saved}\n" in editor.text

    def test_ones_own_version_can_be_kept(self, editor: Editor) -> None:
        asked = editor.asked(prompts=only(label="mine"))
        editor.path.write_text("tests: [broken\n")
        answer = editor.save(asked={**asked, "base": SUITE, "digest": digest(editor.path)})
        assert answer.status == 200
        assert editor.text == SUITE.replace("  - id: one\n", "  - id: one\n    label: mine\n")

    def test_a_file_that_is_gone_is_not_made_again(self, editor: Editor) -> None:
        asked = editor.asked(prompts=only(label="mine"))
        editor.path.unlink()
        assert editor.save(asked=asked).status == 404
        assert not editor.path.exists()

    def test_a_suite_with_problems_is_saved_only_when_asked_for(self, editor: Editor) -> None:
        asked = editor.asked(tests=only(more="thresold: 1"))
        answer = editor.save(asked=asked)
        assert answer.status == 422
        assert "thresold" in answer.json["problems"][0]["message"]
        assert editor.text == SUITE
        assert editor.save(asked={**asked, "anyway": True}).status == 200
        assert "thresold" in editor.text

    def test_a_field_that_cannot_be_read_is_never_saved(self, editor: Editor) -> None:
        asked = editor.asked(tests=only(evaluation_schema="{"))
        assert editor.save(asked={**asked, "anyway": True}).status == 422
        assert editor.text == SUITE

    def test_a_read_only_file_is_left_alone(self, editor: Editor) -> None:
        editor.path.chmod(0o444)
        answer = editor.save(prompts=only(label="x"))
        editor.path.chmod(0o644)
        assert answer.status == 403
        assert "read-only" in answer.json["detail"]
        assert "chmod u+w" in answer.json["hint"]
        assert editor.text == SUITE

    @pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_that_cannot_be_written_to_says_so(self, editor: Editor) -> None:
        editor.folder.chmod(0o555)
        answer = editor.save(prompts=only(label="x"))
        editor.folder.chmod(0o755)
        assert answer.status == 403
        assert "still on this page" in answer.json["hint"]

    def test_text_that_no_file_can_hold_is_refused(self, editor: Editor) -> None:
        asked = json.dumps(editor.asked(prompts=only(label="half \ud83d")))
        answer = editor.server.send(
            "POST", "/suites/save", asked.encode(), {"content_type": "application/json"}
        )
        assert answer.status in {400, 422}
        assert editor.text == SUITE

    def test_json_suites_stay_json(self, editor: Editor) -> None:
        path = editor.folder / "suite.json"
        path.write_text(
            '{\n  "prompts": ["{{ input }}"],\n  "providers": ["echo"],\n  "tests": [{"input": "x"}]\n}\n'
        )
        asked = {"path": "suite.json", "digest": digest(path), "draft": {"tests": only(input="é\n")}}
        assert editor.save(asked=asked).status == 200
        assert path.read_text(encoding="utf-8").endswith('"tests": [{"input": "é\\n"}]\n}\n')

    def test_other_sites_cannot_save(self, editor: Editor) -> None:
        answer = editor.server.post(
            "/suites/save", editor.asked(prompts=only(label="x")), origin="http://evil.example"
        )
        assert answer.status == 403
        assert editor.text == SUITE


class TestAssertions:
    def test_kinds_are_those_of_the_registry_and_can_be_sent_back(self, editor: Editor) -> None:
        kinds = editor.server.get("/suites/assertions").json
        assert kinds["kinds"][0]["type"] == "g-eval"
        text = "# why\n- type: equals # all\n  value: Hello\n"
        change = {"index": 0, "key": "value", "kind": "text", "value": "Hi"}
        answer = editor.server.post("/suites/assertions", {"text": text, "change": change})
        assert answer.json["text"] == text.replace("Hello", "Hi")
        assert answer.json["assertions"][0]["values"]["value"] == {"kind": "text", "value": "Hi"}

    @pytest.mark.parametrize(
        ("list_of", "asked", "words"),
        [
            ("assertions", {"text": "- ["}, '"line":1'),
            ("assertions", {"text": "a: b"}, "assertions are a list"),
            (
                "assertions",
                {"text": "- type: cost", "change": {"index": 4, "key": "x"}},
                "there is no assertion 5",
            ),
            ("assertions", {"text": "- type: cost", "change": {"index": -1}}, "0 or more"),
            (
                "assertions",
                {"text": "- type: a", "change": {"index": 0, "key": "x", "kind": "code"}},
                "one of",
            ),
            ("assertions", {"text": "- 3", "change": {"index": 0, "type": "cost"}}, "only its YAML shows"),
            ("assertions", {}, "this is required"),
            ("turns", {"text": "- ["}, '"line":1'),
            ("turns", {"text": "a: b"}, "turns are a list"),
            ("turns", {"text": "- user: a", "change": {"index": 4, "text": "b"}}, "there is no turn 5"),
            ("turns", {"text": "- 3", "change": {"index": 0, "text": "b"}}, "only its YAML shows"),
        ],
    )
    def test_what_cannot_be_shown_or_changed_is_refused(
        self, editor: Editor, list_of: str, asked: dict[str, Any], words: str
    ) -> None:
        answer = editor.server.post(f"/suites/{list_of}", asked)
        assert answer.status == 422
        assert words in answer.text

    def test_problems_name_the_assertion_and_its_key(self, editor: Editor) -> None:
        broken = "- type: equals\n  value: Hello\n- type: latency\n  threshold: soon\n"
        [problem] = editor.check(tests=only(**{"assert": broken}))["problems"]
        assert (problem["field"], problem["assertion"], problem["key"]) == ("assert", 1, "threshold")

    def test_a_problem_of_another_file_is_none_of_a_test_of_the_suite(self, editor: Editor) -> None:
        broken = '{"input": "a"}\n{"input": "b", "assert": [{"type": "nope"}]}\n'
        (editor.folder / "more.jsonl").write_text(broken, encoding="utf-8")
        editor.path.write_text(SUITE.replace("tests:\n", "tests:\n  - file://more.jsonl\n"), encoding="utf-8")
        [problem] = editor.check()["problems"]
        assert "nope" in problem["message"]
        assert (problem["file"], problem["line"]) == ("more.jsonl", 2)
        assert {problem[name] for name in ("list", "index", "assertion", "key")} == {None}

    def test_problems_name_the_member_of_a_set_and_what_every_test_has(self, editor: Editor) -> None:
        members = "- type: assert-set\n  assert:\n    - type: is-json\n    - {type: latency, threshold: soon}"
        default = {"fields": {"assert": members}}
        (of_test,) = editor.check(tests=only(**{"assert": members}))["problems"]
        (of_default,) = editor.check(default_test=default)["problems"]
        assert [(item["list"], item["index"], item["field"]) for item in (of_test, of_default)] == [
            ("tests", 0, "assert"),
            ("default_test", 0, "assert"),
        ]
        assert (of_test["assertion"], of_test["member"], of_test["key"]) == (0, 1, "threshold")
        assert (of_default["assertion"], of_default["member"], of_default["key"]) == (0, 1, "threshold")

    def test_what_every_test_has_is_saved(self, editor: Editor) -> None:
        answer = editor.save(default_test={"fields": {"vars": "tone: kind # always"}})
        assert answer.json["form"]["default_test"]["fields"]["vars"] == "tone: kind # always"
        assert editor.text == SUITE.replace(
            "tests:", "defaultTest:\n  vars:\n    tone: kind # always\ntests:"
        )

    def test_a_comment_above_the_first_assertion_is_saved(self, editor: Editor) -> None:
        commented = "# what counts\n- type: equals\n  value: Hello\n- type: latency\n  threshold: 9\n"
        assert editor.save(tests=only(**{"assert": commented})).status == 200
        assert "    assert:\n      # what counts\n      - type: equals\n" in editor.text


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
