"""The suite editor in a real browser: a form and the YAML beside it, and the file that is saved."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.axe import violations
from support.browser import Visit, visit_in
from support.editor_page import SUITE, field, open_editor, open_test, save, text_of, wait_for_state, yaml_of


def expect_value(place: Any, value: str) -> None:
    from playwright.sync_api import expect

    expect(place).to_have_value(value, timeout=60_000)


class TestForm:
    def test_modes_criteria_and_schemas_are_stored_and_all_else_keeps_its_bytes(
        self, window: Visit, folder: Path
    ) -> None:
        mode = window.page.get_by_label("Evaluation mode")
        assert mode.locator("option").all_inner_texts()[1:] == [
            "llm: a judge, by criteria",
            "schema: each test's JSON Schema",
        ]
        field(window, "prompts[0].evaluation_criteria").press("Control+End")
        window.page.keyboard.type("It is short. Very.")
        field(window, "prompts[0].system").fill("Answer: in one sentence")
        changed = SUITE.replace("friendly.\n", "friendly.\n      It is short. Very.\n")
        changed = changed.replace("Answer in one sentence.", '"Answer: in one sentence"')
        save(window)
        assert text_of(folder) == changed.replace("criteria: |\n", "criteria: |-\n")
        mode.select_option("schema")
        open_test(window, 1)
        schema = field(window, "tests[0].evaluation_schema")
        schema.fill('{"type": "objekt"')
        window.page.get_by_text("This is not valid JSON yet").wait_for()
        window.page.get_by_role("button", name="Save", exact=True).click()
        window.page.get_by_text("Not saved: a field of the form is not valid JSON").wait_for()
        schema.press("End")
        window.page.keyboard.type("}")
        window.page.locator("#field-tests-0--evaluation_schema-problem", has_text="JSON Schema").wait_for()
        schema.fill('{"type": "object"}')
        field(window, "prompts[0].evaluation_criteria").fill("")
        field(window, "prompts[0].system").focus()
        save(window)
        text = text_of(folder)
        assert "evaluation_criteria" not in text
        assert (
            '    evaluation_schema: {\n        "type": "object"\n      }\n\n  - description: a question'
            in text
        )
        assert "evaluation_mode: schema" in text

    def test_prompts_and_tests_are_added_duplicated_and_deleted_by_keyboard(
        self, window: Visit, folder: Path
    ) -> None:
        page = window.page
        page.get_by_role("button", name="Add a test").press("Enter")
        page.keyboard.type("yes")
        page.get_by_role("button", name="Duplicate test 3").press("Enter")
        page.locator("[data-items=tests] summary").nth(1).press("Enter")
        page.get_by_role("button", name="Delete test 2").press("Enter")
        page.get_by_role("button", name="Add a prompt").press("Enter")
        page.keyboard.type("Say {{ input }}")
        save(window)
        added = "  - raw: Say {{ input }}\n"
        expected = SUITE.replace("is friendly.\n", f"is friendly.\n{added}")
        gone = "  - description: a question\n    input: Are you open?\n"
        assert text_of(folder) == expected.replace(gone, '  - input: "yes"\n' * 2)
        page.get_by_role("button", name="Delete prompt 2").click()
        yaml_of(window).focus()
        page.keyboard.press("Control+z")
        wait_for_state(window, "Saved")

    def test_an_assertion_begins_with_what_it_needs(self, window: Visit, folder: Path) -> None:
        open_test(window, 2)
        window.page.get_by_role("group", name="Assertions of test 2").get_by_role(
            "button", name="Add"
        ).click()
        window.page.keyboard.type("It says when")
        window.page.keyboard.press("Enter")
        window.page.keyboard.type("met")
        window.page.locator(".cm-tooltip-autocomplete li", has_text="metric").click()
        window.page.keyboard.type("hours")
        window.page.get_by_role("group", name="Assertions of test 2").get_by_text("g-eval hours").wait_for()
        save(window)
        assert text_of(folder) == SUITE + (
            "    assert:\n      - type: g-eval\n        criteria: It says when\n"
            "        metric: hours\n        threshold: 0.5\n"
        )

    def test_many_tests_come_in_pages_and_a_file_of_them_is_named(self, window: Visit, folder: Path) -> None:
        tests = "".join(f"  - input: number {index}\n" for index in range(45))
        (folder / "many.yaml").write_text(f"prompts: ['{{{{ input }}}}']\nproviders: [echo]\ntests:\n{tests}")
        open_editor(window, "many.yaml")
        window.page.get_by_role("button", name="Next").click()
        open_test(window, 1)
        expect_value(field(window, "tests[20].input"), "number 20")
        (folder / "t.csv").write_text("input\na\n")
        (folder / "many.yaml").write_text(
            "prompts: ['{{ input }}']\nproviders: [echo]\ntests: file://t.csv\n"
        )
        open_editor(window, "many.yaml")
        window.page.get_by_text("The tests are in a separate file: file://t.csv").wait_for()


PASTE = """
(place, text) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  place.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}
"""


class TestYaml:
    def test_what_is_typed_there_is_in_the_form_and_problems_are_at_their_line(
        self, window: Visit, folder: Path
    ) -> None:
        page = window.page
        yaml_of(window).focus()
        page.keyboard.press("Control+End")
        page.keyboard.type("gates: [pass_rat >= 1]")
        link = page.locator(".problem-link", has_text="pass_rat")
        assert link.inner_text().startswith("29: ")
        page.locator(".cm-lint-marker-error").wait_for()
        page.keyboard.press("Control+Home")
        link.click()
        page.keyboard.press("Home")
        page.keyboard.press("Control+Delete")
        page.keyboard.type("tags")
        page.keyboard.press("Shift+End")
        page.keyboard.type(": { stage: one }")
        page.get_by_text("No problems").wait_for()
        page.keyboard.press("Control+Home")
        for _ in range(2):
            page.keyboard.press("ArrowDown")
        page.keyboard.type("tes")
        page.keyboard.press("Escape")
        page.locator("[data-form].is-waiting").wait_for()
        page.keyboard.press("Control+s")
        page.get_by_text("Not saved: the text is not valid YAML").wait_for()
        page.keyboard.press("Control+z")
        page.get_by_text("No problems").wait_for()
        page.keyboard.press("Control+Home")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("End")
        page.keyboard.type(" of two")
        expect_value(field(window, "description"), "A bakery of two")
        page.keyboard.press("Control+s")
        wait_for_state(window, "Saved")
        expected = SUITE.replace("description: A bakery\n", "description: A bakery of two\n")
        assert text_of(folder) == expected + "tags: { stage: one }"

    def test_types_and_keys_are_completed(self, window: Visit) -> None:
        page = window.page
        yaml_of(window).focus()
        page.keyboard.press("Control+End")
        page.keyboard.type("    as")
        page.locator(".cm-tooltip-autocomplete li", has_text=re.compile("assert$")).wait_for()
        page.keyboard.press("Escape")
        page.keyboard.press("Backspace")
        page.keyboard.press("Backspace")
        page.keyboard.type("assert:")
        page.keyboard.press("Enter")
        page.keyboard.type("- type: levensh")
        offered = page.locator(".cm-tooltip-autocomplete li")
        offered.filter(has_text=re.compile("^.?levenshtein$")).click()
        page.keyboard.press("Enter")
        page.keyboard.press("Control+Space")
        offered.filter(has_text="threshold").wait_for()
        names = [name.split("\n")[-1] for name in offered.all_inner_texts()]
        assert {"threshold", "value"} <= set(names)
        assert "criteria" not in names

    @pytest.mark.parametrize("text", [SUITE.replace("\n", "\r\n"), SUITE.replace("order\n", "order\r\n")])
    def test_ends_of_lines_stay_as_they_are(self, window: Visit, folder: Path, text: str) -> None:
        (folder / "suite.yaml").write_bytes(text.encode())
        open_editor(window)
        field(window, "description").fill("Two\tbakeries")
        save(window)
        saved = (folder / "suite.yaml").read_bytes().decode()
        assert saved == text.replace("description: A bakery", 'description: "Two\\tbakeries"')

    @pytest.mark.parametrize("ends", ["\n", "\r\n"])
    @pytest.mark.parametrize("pasted", ["\n", "\r\n", "\r"])
    def test_what_is_pasted_gets_the_ends_of_lines_of_the_file(
        self, window: Visit, folder: Path, ends: str, pasted: str
    ) -> None:
        text = SUITE.replace("\n", ends)
        (folder / "suite.yaml").write_bytes(text.encode())
        open_editor(window)
        yaml_of(window).focus()
        window.page.keyboard.press("Control+End")
        lines = ["", "  - input: one", "  - input: two", ""]
        yaml_of(window).evaluate(PASTE, pasted.join(lines))
        window.page.locator("[data-items=tests] summary").nth(3).wait_for()
        save(window)
        assert (folder / "suite.yaml").read_bytes().decode() == text + ends.join(lines)


def test_one_check_is_under_way_at_a_time_and_the_last_text_is_checked(window: Visit, folder: Path) -> None:
    """A large suite takes seconds to check, in the process that runs suites and measures how long models take."""
    page = window.page
    under_way: list[int] = []
    most: list[int] = []

    def slow(route: Any) -> None:
        under_way.append(1)
        most.append(len(under_way))
        page.wait_for_timeout(1500)
        under_way.pop()
        route.continue_()

    page.route("**/suites/check", slow)
    yaml_of(window).focus()
    page.keyboard.press("Control+End")
    for letters in ("ga", "tes: [pass", "_rat >= 1]"):
        page.keyboard.type(letters)
        page.wait_for_timeout(600)
    page.locator(".problem-link", has_text="pass_rat").wait_for()
    page.unroute("**/suites/check")
    assert max(most) == 1


class TestDrafts:
    def test_unsaved_changes_come_back(self, window: Visit, folder: Path) -> None:
        field(window, "prompts[0].system").fill("Not saved yet.")
        window.page.locator("[data-diff]", has_text="+    system: Not saved yet. # short!").wait_for(
            state="attached"
        )
        window.page.on("dialog", lambda dialog: dialog.accept())
        open_editor(window)
        expect_value(field(window, "prompts[0].system"), "Not saved yet.")
        (folder / "suite.yaml").write_text(SUITE + "# theirs\n", encoding="utf-8")
        open_editor(window)
        window.page.get_by_text("made to an earlier version of this file").wait_for()
        expect_value(field(window, "prompts[0].system"), "Answer in one sentence.")
        window.page.get_by_role("button", name="Show them").click()
        expect_value(field(window, "prompts[0].system"), "Not saved yet.")

    def test_somebody_elses_change_is_not_overwritten(self, window: Visit, folder: Path) -> None:
        theirs = SUITE.replace("A bakery\n", "Their bakery\n")
        field(window, "prompts[0].system").fill("Mine.")
        (folder / "suite.yaml").write_text(theirs, encoding="utf-8")
        window.page.keyboard.press("Control+s")
        window.page.get_by_text("The file changed on disk since you opened it").wait_for()
        assert text_of(folder) == theirs
        window.page.get_by_role("button", name="Keep my version").click()
        wait_for_state(window, "Saved")
        assert text_of(folder) == SUITE.replace("Answer in one sentence.", "Mine.")
        (folder / "suite.yaml").write_text(theirs, encoding="utf-8")
        field(window, "prompts[0].system").fill("Mine again.")
        window.page.get_by_role("button", name="Reload the file").click()
        expect_value(field(window, "description"), "Their bakery")

    def test_a_suite_with_problems_can_be_saved_when_one_insists(self, window: Visit, folder: Path) -> None:
        field(window, "prompts[0].system").fill("{{ missing }}")
        window.page.get_by_role("button", name="Save", exact=True).click()
        window.page.get_by_role("button", name="Save anyway").click()
        wait_for_state(window, "Saved")
        assert "{{ missing }}" in text_of(folder)


class TestRun:
    def test_it_has_its_page_at_once(self, window: Visit) -> None:
        window.page.get_by_role("button", name="Run", exact=True).click()
        window.page.wait_for_url(re.compile(r"/runs/\d{8}-"))
        window.page.locator('[data-run-status="completed"]').wait_for()
        window.page.locator("[data-run-actions] summary").click()
        window.page.get_by_role("link", name="Edit the suite").click()
        window.page.wait_for_url("**/suites/edit?path=suite.yaml")

    def test_changes_are_saved_first(self, window: Visit, folder: Path) -> None:
        field(window, "prompts[0].system").fill("Say cake.")
        window.page.get_by_role("button", name="Save and run").click()
        window.page.wait_for_url(re.compile(r"/runs/\d{8}-"))
        assert "system: Say cake. # short!" in text_of(folder)

    def test_a_second_one_is_asked_about(self, window: Visit, folder: Path) -> None:
        (folder / "replies.yaml").write_text("- reply: bread\n  latency_ms: 600000\n")
        slow = re.sub(r"tests:.*", "tests: [{ input: one }]\n", SUITE, flags=re.DOTALL)
        (folder / "slow.yaml").write_text(slow)
        open_editor(window, "slow.yaml")
        window.page.get_by_role("button", name="Run", exact=True).click()
        window.page.wait_for_url(re.compile(r"/runs/\d{8}-"))
        first = window.page.url
        open_editor(window, "slow.yaml")
        window.page.get_by_role("button", name="Run", exact=True).click()
        note = window.page.locator('[data-message="run"]')
        note.get_by_text("A run of this suite is in progress").wait_for()
        window.page.keyboard.press("Enter")  # the focus is on the first button
        window.page.wait_for_url(first)
        open_editor(window, "slow.yaml")
        window.page.get_by_role("button", name="Run", exact=True).click()
        note.get_by_role("button", name="Start another one").click()
        window.page.wait_for_url(re.compile(r"/runs/\d{8}-"))
        assert window.page.url != first
        window.complaints.clear()  # the browser tells of the refusals
        for address in (first, window.page.url):
            run = address.rpartition("/")[2]
            for _ in range(2):
                window.page.request.post(f"{window.address}/api/runs/{run}/stop", data={})

    def test_a_suite_that_runs_code_is_refused_with_the_reason(self, window: Visit, folder: Path) -> None:
        (folder / "code.yaml").write_text("prompts: [hi]\nproviders: ['exec:echo hi']\ntests: [{input: x}]\n")
        open_editor(window, "code.yaml")
        window.page.get_by_role("button", name="Run", exact=True).click()
        window.page.get_by_text(re.compile("Not started: .*contains code.*--allow-code")).wait_for()


class TestList:
    def test_a_new_suite_is_made_and_opened(self, window: Visit, folder: Path) -> None:
        window.go("/suites")
        window.page.get_by_label("Name of the new suite").fill("suite.yaml")
        window.page.get_by_role("button", name="New suite").click()
        window.page.get_by_text("suite.yaml already exists").wait_for()
        window.page.get_by_label("Name of the new suite").fill("second")
        window.page.get_by_role("button", name="New suite").click()
        window.page.wait_for_url("**/suites/edit?path=second.yaml")
        assert (folder / "second.yaml").is_file()

    def test_what_a_suite_says_is_inert(self, window: Visit, folder: Path) -> None:
        hostile = "<img src=x onerror='window.hacked = true'></script><script>window.hacked = true</script>"
        (folder / "hostile.yaml").write_text(
            f'description: "{hostile}"\nprompts: ["{hostile}"]\nproviders: [echo]\n'
        )
        window.go("/suites")
        open_editor(window, "hostile.yaml")
        expect_value(field(window, "prompts[0]"), hostile)
        assert window.page.evaluate("window.hacked === undefined")


def test_a_narrow_window_needs_no_sideways_scrolling_and_has_no_barriers(
    site: Any, folder: Path, page: Any
) -> None:
    with visit_in(page, site.address, viewport=(360, 800)) as window:
        open_editor(window)
        open_test(window, 1)
        for theme, rules in {"light": (), "dark": ("color-contrast",)}.items():
            page.emulate_media(color_scheme=theme)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert violations(page, *rules) == []
