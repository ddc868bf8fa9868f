"""A suite as a form: what the fields show, and what becomes of the file when they are changed."""

from pathlib import Path
from textwrap import dedent

import pytest
from msgspec.structs import replace

from geval_cli.source.edit.yaml_edit import EditableText, editable_text
from geval_cli.source.yaml_source import read_yaml
from geval_cli.suite.draft import ComposedSuite, ItemDraft, SuiteDraft, SuiteForm, compose_suite, suite_form

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/configs/*.yaml"))

SUITE = dedent("""\
    # A bakery
    description: bakery # short

    prompts:
      # judged
      - id: reply
        system: Answer kindly.
        evaluationMode: llm
        evaluation_criteria: Be friendly. # the judge's
      - "Say {{ word }}" # short form
      - - role: user
          content: "{{ input }}"
      - raw: By criteria alone
        evaluation_criteria: Be brief.

    providers:
      - echo
      - id: openai:gpt-4.1
        config: { temperature: 0 } # cold

    defaultTest:
      options: { provider: echo }

    tests:
      - description: one
        input: Hello
        vars: { word: a }
        evaluation_schema:
          type: object # any
          required: [x]
        assert:
          # exact
          - type: equals
            value: Hello
        threshold: 0.5 # half
        metadata:
          who: me
      - vars:
          word: b
        evaluationSchema: '{"type": "array"}'
    """)


def source(text: str = SUITE) -> EditableText:
    return editable_text(text, "suite.yaml")


def form(text: str = SUITE) -> SuiteForm:
    return suite_form(source(text))


def composed(text: str = SUITE, **lists: tuple[ItemDraft, ...]) -> ComposedSuite:
    return compose_suite(source(text), SuiteDraft(**lists))


def kept(count: int, **changes: ItemDraft) -> tuple[ItemDraft, ...]:
    """So many items as they are, but for those named `_0`, `_1`."""
    return tuple(
        replace(changes[f"_{index}"], origin=index) if f"_{index}" in changes else ItemDraft(origin=index)
        for index in range(count)
    )


def value_of(suite: ComposedSuite) -> dict[str, object]:
    assert suite.problems == ()
    found = read_yaml(suite.text, "").value
    assert isinstance(found, dict)
    return found


class TestForm:
    def test_every_form_of_prompt_has_kind_and_body(self) -> None:
        shown = [(prompt.fields["kind"], prompt.fields["body"]) for prompt in form().prompts]
        assert shown == [
            ("system", "Answer kindly."),
            ("raw", "Say {{ word }}"),
            (
                "messages",
                'role: user\ncontent: "{{ input }}"'.replace("role", "- role").replace("\nc", "\n  c"),
            ),
            ("raw", "By criteria alone"),
        ]

    def test_criteria_without_a_mode_show_the_mode_llm(self) -> None:
        modes = [prompt.fields["evaluation_mode"] for prompt in form().prompts]
        assert modes == ["llm", "", "", "llm"]

    def test_yaml_fields_show_the_lines_of_the_file(self) -> None:
        test = form().tests[0].fields
        assert test["assert"] == "- type: equals\n  value: Hello"
        assert test["vars"] == "word: a"
        assert test["more"] == "threshold: 0.5 # half\nmetadata:\n  who: me"

    def test_schemas_show_as_json(self) -> None:
        one, two = form().tests
        assert one.fields["evaluation_schema"] == '{\n  "type": "object",\n  "required": [\n    "x"\n  ]\n}'
        assert two.fields["evaluation_schema"] == '{"type": "array"}'

    def test_tests_in_a_file_are_named(self) -> None:
        shown = form("prompts: hi\ntests: file://tests.jsonl\n")
        assert (shown.tests, shown.tests_file) == ((), "file://tests.jsonl")
        assert shown.prompts[0].fields["body"] == "hi"

    @pytest.mark.parametrize(
        "tests",
        [
            "https://example.org/a.csv",
            "huggingface://datasets/a/b",
            "a.csv",
            "{path: a.csv}",
            "null # yet",
            "[]",
        ],
    )
    def test_tests_that_are_not_listed_outlive_a_change(self, tests: str) -> None:
        text = f"prompts: hi\ntests: {tests}\n"
        draft = SuiteDraft(fields={"description": "new"}, tests=())
        assert compose_suite(source(text), draft).text == f"description: new\n{text}"
        assert bool(form(text).tests_file) is not tests.startswith(("null", "["))

    def test_what_is_no_item_cannot_be_edited(self) -> None:
        shown = form("prompts: [1]\ntests: [a, null]\n")
        assert [item.is_editable for item in (*shown.prompts, *shown.tests)] == [False] * 3


class TestNoChange:
    @pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
    def test_saving_what_is_shown_keeps_every_byte(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        shown = form(text)
        draft = SuiteDraft(
            shown.fields,
            ItemDraft(shown.default_test.fields),
            *(
                tuple(ItemDraft(item.fields, index) for index, item in enumerate(items))
                for items in (shown.prompts, shown.providers, shown.tests)
            ),
        )
        found = compose_suite(source(text), replace(draft, tests=None if shown.tests_file else draft.tests))
        assert (found.text, found.problems) == (text, ())

    def test_also_with_a_browsers_line_breaks(self) -> None:
        fields = {key: text.replace("\n", "\r\n") for key, text in form().tests[0].fields.items()}
        assert composed(tests=kept(2, _0=ItemDraft(fields))).text == SUITE


class TestPrompts:
    def test_the_mode_is_stored_on_the_prompt(self) -> None:
        found = composed(prompts=kept(4, _1=ItemDraft({"evaluation_mode": "schema"})))
        assert value_of(found)["prompts"][1] == {"raw": "Say {{ word }}", "evaluation_mode": "schema"}

    def test_the_spelling_of_the_file_stays(self) -> None:
        found = composed(prompts=kept(4, _0=ItemDraft({"evaluation_mode": "schema"})))
        assert found.text == SUITE.replace("evaluationMode: llm", "evaluationMode: schema")

    def test_criteria_are_stored_on_the_prompt(self) -> None:
        found = composed(prompts=kept(4, _0=ItemDraft({"evaluation_criteria": "Be kind."})))
        assert found.text == SUITE.replace("Be friendly.", "Be kind.")

    def test_empty_criteria_take_their_key_away(self) -> None:
        found = composed(prompts=kept(4, _0=ItemDraft({"evaluation_criteria": " "})))
        assert found.text == SUITE.replace("    evaluation_criteria: Be friendly. # the judge's\n", "")

    def test_no_mode_and_no_criteria_leave_the_short_form_of_a_mapping(self) -> None:
        found = composed(prompts=kept(4, _3=ItemDraft({"evaluation_mode": "", "evaluation_criteria": ""})))
        assert value_of(found)["prompts"][3] == {"raw": "By criteria alone"}

    def test_a_text_becomes_a_system_message_in_its_place(self) -> None:
        found = composed(prompts=kept(4, _3=ItemDraft({"kind": "system"})))
        assert found.text == SUITE.replace("raw: By criteria", "system: By criteria")

    def test_messages_are_yaml(self) -> None:
        body = "- role: system\n  content: Hi # there\n"
        found = composed(prompts=kept(4, _1=ItemDraft({"kind": "messages", "body": body})))
        assert value_of(found)["prompts"][1] == {"messages": [{"role": "system", "content": "Hi"}]}

    def test_new_prompts_have_the_shortest_form(self) -> None:
        new = (ItemDraft({"kind": "raw", "body": "Hi"}), ItemDraft({"kind": "system", "body": "Ho"}))
        assert value_of(composed(prompts=(*kept(4), *new)))["prompts"][4:] == ["Hi", {"system": "Ho"}]

    def test_a_copy_keeps_comments(self) -> None:
        prompts = (*kept(1), ItemDraft({"id": "reply-2"}, 0, is_copy=True), *kept(4)[1:])
        found = composed(prompts=prompts)
        assert found.text.count("# the judge's") == 2
        assert value_of(found)["prompts"][1]["id"] == "reply-2"

    def test_a_single_prompt_stays_single(self) -> None:
        found = composed("prompts: hi # x\n", prompts=kept(1, _0=ItemDraft({"body": "ho"})))
        assert found.text == "prompts: ho # x\n"

    def test_a_second_prompt_makes_a_list(self) -> None:
        found = composed("prompts: hi\n", prompts=(*kept(1), ItemDraft({"kind": "raw", "body": "ho"})))
        assert value_of(found)["prompts"] == ["hi", "ho"]

    def test_expected_schema_is_apart_from_the_evaluation(self) -> None:
        found = composed(prompts=kept(4, _0=ItemDraft({"expected_schema": '{"type": "object"}'})))
        assert value_of(found)["prompts"][0]["expected_schema"] == {"type": "object"}


class TestTests:
    def test_the_schema_is_stored_on_the_test(self) -> None:
        found = composed(
            tests=kept(2, _0=ItemDraft({"evaluation_schema": '{"type": "object", "required": ["y"]}'}))
        )
        assert found.text == SUITE.replace("required: [x]", "required: [y]")

    def test_a_schema_that_was_text_stays_text(self) -> None:
        found = composed(tests=kept(2, _1=ItemDraft({"evaluation_schema": '{"type": "string"}'})))
        assert found.text == SUITE.replace('"array"', '"string"')

    def test_a_schema_may_be_a_file(self) -> None:
        found = composed(tests=kept(2, _0=ItemDraft({"evaluation_schema": "file://s.json"})))
        assert value_of(found)["tests"][0]["evaluation_schema"] == "file://s.json"

    def test_an_empty_schema_takes_its_key_away(self) -> None:
        found = composed(tests=kept(2, _1=ItemDraft({"evaluation_schema": ""})))
        assert "evaluationSchema" not in value_of(found)["tests"][1]

    def test_assertions_go_in_as_they_are_written(self) -> None:
        text = "- type: equals # yes\n  value: Ho\n- type: is-json"
        found = composed(tests=kept(2, _0=ItemDraft({"assert": text})))
        assert found.text == SUITE.replace(
            "      - type: equals\n        value: Hello\n",
            "      - type: equals # yes\n        value: Ho\n      - type: is-json\n",
        )

    def test_other_keys_keep_what_is_not_changed(self) -> None:
        found = composed(tests=kept(2, _0=ItemDraft({"more": "threshold: 0.5\nmetadata:\n  who: you"})))
        assert found.text == SUITE.replace("who: me", "who: you")

    def test_a_test_is_deleted_another_added(self) -> None:
        found = composed(tests=(ItemDraft(origin=1), ItemDraft({"input": "new", "vars": "word: c"})))
        tests = value_of(found)["tests"]
        assert tests == [
            {"vars": {"word": "b"}, "evaluationSchema": '{"type": "array"}'},
            {"vars": {"word": "c"}, "input": "new"},
        ]

    def test_what_is_written_in_a_new_one_goes_in_with_its_comments(self) -> None:
        new = ItemDraft(
            {"description": "three", "assert": "# why\n- type: is-json # yes", "vars": "a: 1 # one"}
        )
        found = composed(tests=(*kept(2), new))
        assert found.text == (
            f"{SUITE}  - description: three\n    vars:\n      a: 1 # one\n"
            "    assert:\n      # why\n      - type: is-json # yes\n"
        )
        assert found.problems == ()

    def test_no_list_touches_no_list(self) -> None:
        assert composed().text == SUITE


class TestProviders:
    def test_ids_change_settings_stay(self) -> None:
        found = composed(
            providers=kept(2, _0=ItemDraft({"id": "none"}), _1=ItemDraft({"id": "openai:gpt-5"}))
        )
        assert found.text == SUITE.replace("- echo", "- none").replace("gpt-4.1", "gpt-5")


class TestBrokenFields:
    @pytest.mark.parametrize(
        ("fields", "name", "message", "place"),
        [
            (
                {"evaluation_schema": '{"type":\n objekt}'},
                "evaluation_schema",
                "a JSON value is missing here",
                (2, 2),
            ),
            ({"assert": "- type: [a\n"}, "assert", "", (1, 9)),
            ({"assert": "type: equals"}, "assert", "this must be a list, found a mapping", None),
            ({"vars": "- a"}, "vars", "this must be a mapping", None),
            ({"more": "input: x"}, "more", "`input` has a field of its own", None),
        ],
    )
    def test_each_says_what_is_wrong_and_the_rest_is_composed(
        self, fields: dict[str, str], name: str, message: str, place: tuple[int, int] | None
    ) -> None:
        found = composed(tests=kept(2, _0=ItemDraft({**fields, "description": "changed"})))
        (problem,) = found.problems
        assert (problem.item, problem.field) == (("tests", 0), name)
        assert message in problem.problem.message
        if place is not None:
            location = problem.problem.location
            assert location is not None
            assert (location.line, location.column) == place
        assert found.text == SUITE.replace("description: one", "description: changed")

    def test_messages_and_defaults_are_checked_too(self) -> None:
        draft = SuiteDraft(
            default_test=ItemDraft({"more": "[a", "vars": "- b"}),
            prompts=kept(4, _1=ItemDraft({"kind": "messages", "body": "x: ["})),
        )
        found = compose_suite(source(), draft)
        assert [(problem.item, problem.field) for problem in found.problems] == [
            (("default_test", 0), "vars"),
            (("default_test", 0), "more"),
            (("prompts", 1), "body"),
        ]


DEFAULTS = dedent("""\
    prompts: ["{{ input }}"]
    default_test: # of all
      # the judge
      options:
        provider: echo # cheap
        scoring: single
      threshold: 0.5 # half
      assert: # those too
        - type: latency # fast
          threshold: 900
    tests: [{ input: x }]
    """)


def with_default(text: str, **fields: str) -> ComposedSuite:
    return compose_suite(source(text), SuiteDraft(default_test=ItemDraft(fields)))


class TestDefaultTest:
    def test_it_has_the_fields_of_a_test(self) -> None:
        shown = form(DEFAULTS)
        assert shown.default_test.fields.keys() == shown.tests[0].fields.keys()
        assert shown.default_test.fields["assert"] == "- type: latency # fast\n  threshold: 900"
        assert (
            shown.default_test.fields["more"]
            == "options:\n  provider: echo # cheap\n  scoring: single\nthreshold: 0.5 # half"
        )

    @pytest.mark.parametrize(
        ("fields", "old", "new"),
        [
            ({"input": "Hi"}, "  # the judge", "  input: Hi\n  # the judge"),
            ({"assert": "- type: latency # slow\n  threshold: 900"}, "fast", "slow"),
            ({"assert": "- type: latency # fast\n  threshold: 800"}, "900", "800"),
            (
                {"more": "options:\n  provider: echo # dear\n  scoring: single\nthreshold: 0.5 # half"},
                "cheap",
                "dear",
            ),
            ({"more": "options:\n  provider: echo # cheap\n  scoring: single\nthreshold: 0.6"}, "0.5", "0.6"),
            ({"assert": ""}, DEFAULTS[DEFAULTS.index("  assert") : DEFAULTS.index("tests:")], ""),
        ],
    )
    def test_a_change_is_in_its_lines_alone(self, fields: dict[str, str], old: str, new: str) -> None:
        found = with_default(DEFAULTS, **fields)
        assert (found.text, found.problems) == (DEFAULTS.replace(old, new), ())

    def test_the_first_one_comes_before_the_tests(self) -> None:
        text = "prompts: [hi]\nproviders: [echo]\ntests: [{ input: x }] # all\n"
        found = with_default(text, vars="tone: kind")
        assert found.text == text.replace("tests:", "defaultTest:\n  vars:\n    tone: kind\ntests:")
        assert with_default(found.text, vars="").text == text

    @pytest.mark.parametrize("written", ["defaultTest:", "defaultTest: {}", "defaultTest: ~ # none"])
    def test_an_empty_one_stays_as_it_is(self, written: str) -> None:
        text = f"prompts: [hi]\n{written}\n"
        fields = form(text).default_test.fields
        assert with_default(text, **fields).text == text
        assert "input: Hi" in with_default(text, input="Hi").text

    def test_another_form_is_not_edited(self) -> None:
        text = "prompts: [hi]\ndefaultTest: file://default.yaml\n"
        assert not form(text).default_test.is_editable
        assert with_default(text, input="Hi").text == text


CONVERSATIONS = dedent("""\
    prompts: ["{{ input }}"]
    tests:
      - turns:
          # greets
          - user: Hello # friendly
          - user: And now?
        images: file://one.png # alone
        metadata:
          who: me # who wrote it
      - images:
          - file://one.png # first
          - file://two.png
    """)


class TestConversationsAndImages:
    def test_each_has_a_field(self) -> None:
        first, second = form(CONVERSATIONS).tests
        assert first.fields["turns"] == "- user: Hello # friendly\n- user: And now?"
        assert (first.fields["images"], second.fields["images"]) == (
            "file://one.png",
            "file://one.png\nfile://two.png",
        )
        assert first.fields["more"] == "metadata:\n  who: me # who wrote it"

    @pytest.mark.parametrize(
        ("test", "fields", "old", "new"),
        [
            (0, {"turns": "- user: Hello # friendly\n- user: And then?"}, "now", "then"),
            (0, {"images": "file://three.png"}, "one.png # alone", "three.png # alone"),
            (1, {"images": "file://one.png\n\n file://3.png"}, "two.png", "3.png"),
            (1, {"images": "file://one.png"}, "\n      - file://two.png", ""),
            (0, {"more": "metadata:\n  who: me # who reads it"}, "wrote", "reads"),
        ],
    )
    def test_a_change_is_in_its_lines_alone(
        self, test: int, fields: dict[str, str], old: str, new: str
    ) -> None:
        tests = kept(2, **{f"_{test}": ItemDraft(fields)})
        found = compose_suite(source(CONVERSATIONS), SuiteDraft(tests=tests))
        before, part, after = CONVERSATIONS.rpartition("- images:") if test else ("", "", CONVERSATIONS)
        assert found.text == before + part + after.replace(old, new, 1)

    @pytest.mark.parametrize("test", [0, 1, 2])
    def test_new_keys_keep_their_comments(self, test: int) -> None:
        more = "threshold: 0.5 # half\noptions: # whose\n  # the judge\n  provider: echo"
        shown = [*(item.fields["more"] for item in form(CONVERSATIONS).tests), ""][test]
        draft = ItemDraft({"more": f"{shown}\n{more}".lstrip("\n")})
        tests = (*kept(2), draft) if test == 2 else kept(2, **{f"_{test}": draft})
        found = composed(CONVERSATIONS, tests=tests)
        assert found.problems == ()
        assert "\n".join(f"    {line}" for line in more.split("\n"))[4:] in found.text
        assert value_of(found)["tests"][test]["options"] == {"provider": "echo"}

    @pytest.mark.parametrize(
        ("line", "then"),
        [
            ("threshold: 0.5", "threshold: 0.5 # half"),
            ("threshold: 0.5 # half", "threshold: 0.5 # a half"),
            ("threshold: 0.5 # half", "threshold: 0.7 # more"),
            ("threshold: 0.5 # half", "threshold: # none any more"),
            ("context: 'a # b' # c", "context: 'a # b' # d"),
            ("context: # none", "context: # still none"),
        ],
    )
    @pytest.mark.parametrize("more", ["", "role: x # y"])
    def test_the_comment_behind_a_single_value_is_that_of_the_form(
        self, line: str, then: str, more: str
    ) -> None:
        suite = "tests:\n  - input: a # first\n    {}\n    assert: []\n  - input: b # last\n"
        lines = [line, more] if more else [line]
        text = suite.format("\n    ".join(lines))
        draft = ItemDraft({"more": "\n".join([then, *lines[1:]])})
        found = composed(text, tests=kept(2, _0=draft))
        assert found.problems == ()
        assert found.text == text.replace(line, then)

    def test_a_comment_behind_a_value_that_others_refer_to_changes_nothing(self) -> None:
        text = "tests:\n  - threshold: &t 0.5 # half\n  - threshold: *t\n"
        found = composed(text, tests=kept(2, _0=ItemDraft({"more": "threshold: 0.5 # a half"})))
        assert found.text == text

    def test_new_keys_in_lines_that_cannot_move_are_saved_without_them(self) -> None:
        more = 'role: |2\n   d\ncontext: "a\n b" # c\nthreshold: 0.5\n'
        found = composed(CONVERSATIONS, tests=(*kept(2), ItemDraft({"more": more})))
        assert value_of(found)["tests"][2] == {"threshold": 0.5, "context": "a b", "role": " d\n"}

    def test_two_images_become_a_list(self) -> None:
        found = composed(CONVERSATIONS, tests=kept(2, _0=ItemDraft({"images": "a.png\nb.png"})))
        assert value_of(found)["tests"][0]["images"] == ["a.png", "b.png"]


class TestSuiteFields:
    def test_the_description_changes(self) -> None:
        found = compose_suite(source(), SuiteDraft({"description": "café"}))
        assert found.text == SUITE.replace("bakery # short", "café # short")

    def test_a_description_comes_first(self) -> None:
        found = compose_suite(source("tests:\n  - input: x\n"), SuiteDraft({"description": "new"}))
        assert found.text == "description: new\ntests:\n  - input: x\n"
