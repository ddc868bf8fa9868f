"""The suite editor in a real browser: what people do with it, and what their files look like afterwards."""

import re
from pathlib import Path
from typing import Any

from support.browser import Visit, visit
from support.editor_page import SUITE, card, field, open_editor, open_test, save, text_of, wait_for_state


class TestModes:
    def test_the_selector_is_there_and_llm_shows_optional_criteria(self, window: Visit) -> None:
        prompt = card(window, "prompts")
        mode = prompt.get_by_label("Evaluation mode")
        assert mode.input_value() == "llm"
        assert mode.locator("option").evaluate_all("options => options.map(o => o.value)") == [
            "",
            "llm",
            "schema",
        ]
        criteria = prompt.get_by_label(re.compile("Evaluation criteria.*optional"))
        assert criteria.is_visible()
        assert criteria.input_value() == "The answer is friendly.\n"
        criteria.fill("")
        save(window)

    def test_schema_hides_criteria_and_shows_each_tests_schema(self, window: Visit) -> None:
        prompt = card(window, "prompts")
        tests = [open_test(window, 1), open_test(window, 2)]
        assert not any(field(test, "evaluation_schema").is_visible() for test in tests)
        prompt.get_by_label("Evaluation mode").select_option("schema")
        assert not field(prompt, "evaluation_criteria").is_visible()
        assert all(test.get_by_label(re.compile("Evaluation Schema")).is_visible() for test in tests)
        prompt.get_by_label("Evaluation mode").select_option("llm")
        assert field(prompt, "evaluation_criteria").input_value() == "The answer is friendly.\n"
        assert not any(field(test, "evaluation_schema").is_visible() for test in tests)

    def test_mode_and_schemas_are_stored(self, window: Visit, folder: Path) -> None:
        card(window, "prompts").get_by_label("Evaluation mode").select_option("schema")
        field(open_test(window, 2), "evaluation_schema").fill('{"type": "object"}')
        save(window)
        assert text_of(folder) == SUITE.replace("evaluation_mode: llm", "evaluation_mode: schema").replace(
            "    input: Are you open?\n",
            "    input: Are you open?\n    evaluation_schema:\n      type: object\n",
        )

    def test_no_mode_takes_the_criteria_along(self, window: Visit, folder: Path) -> None:
        card(window, "prompts").get_by_label("Evaluation mode").select_option("")
        save(window)
        assert "evaluation" not in text_of(folder)


class TestEditing:
    def test_a_field_is_saved_and_comments_stay(self, window: Visit, folder: Path) -> None:
        field(card(window, "prompts"), "body").fill("Answer kindly.")
        assert window.page.get_by_role("button", name="Save and run").is_visible()
        window.page.keyboard.press("Control+s")
        wait_for_state(window, "Saved")
        assert text_of(folder) == SUITE.replace("Answer in one sentence.", "Answer kindly.")

    def test_prompts_and_tests_are_added_duplicated_and_deleted(self, window: Visit, folder: Path) -> None:
        page = window.page
        page.get_by_role("button", name="Add a prompt").click()
        field(card(window, "prompts", 2), "body").fill("Say {{ input }}")
        page.get_by_role("button", name="Duplicate test 1").click()
        field(card(window, "tests", 2), "description").fill("a second order")
        page.get_by_role("button", name="Delete test 3").click()
        page.get_by_role("button", name="Add a test").click()
        field(card(window, "tests", 3), "input").fill("Good night!")
        save(window)
        text = text_of(folder)
        assert '  - "Say {{ input }}"\n' in text or "  - Say {{ input }}\n" in text
        assert text.count("# what counts") == text.count("# of rye") == 2
        assert "a second order" in text
        assert "a question" not in text
        assert text.endswith("  - input: Good night!\n")

    def test_prompts_are_duplicated_and_deleted_too(self, window: Visit, folder: Path) -> None:
        window.page.get_by_role("button", name="Duplicate prompt 1").click()
        window.page.get_by_role("button", name="Delete prompt 1").click()
        save(window)
        assert "- id: reply-2\n    system: Answer in one sentence. # short!" in text_of(folder)
        assert "id: reply\n" not in text_of(folder)

    def test_what_was_deleted_can_be_brought_back(self, window: Visit, folder: Path) -> None:
        window.page.get_by_role("button", name="Delete test 1").click()
        window.page.get_by_role("button", name="Undo").click()
        assert window.page.locator("[data-state]").inner_text() == "Saved"

    def test_assertions_are_shown_as_the_file_has_them(self, window: Visit, folder: Path) -> None:
        assertions = field(open_test(window, 1), "assert")
        assert assertions.input_value() == "- type: icontains # any case\n  value: bread"
        assertions.fill("- type: icontains # any case\n  value: loaf\n- type: not-icontains\n  value: sorry")
        save(window)
        assert "      # what counts\n      - type: icontains # any case\n        value: loaf\n" in text_of(
            folder
        )

    def test_saving_twice_works(self, window: Visit, folder: Path) -> None:
        for text in ("One.", "Two."):
            field(card(window, "prompts"), "body").fill(text)
            save(window)
        assert text_of(folder) == SUITE.replace("Answer in one sentence.", "Two.")

    def test_unsaved_changes_come_back(self, window: Visit, folder: Path) -> None:
        field(card(window, "prompts"), "body").fill("Not saved yet.")
        window.page.locator("[data-changes]").wait_for()
        window.page.on("dialog", lambda dialog: dialog.accept())
        open_editor(window)
        assert field(card(window, "prompts"), "body").input_value() == "Not saved yet."
        window.page.get_by_role("button", name="Discard them").click()
        window.page.wait_for_selector("[data-message=restored]", state="detached")
        assert text_of(folder) == SUITE

    def test_the_difference_to_the_file_is_shown(self, window: Visit) -> None:
        field(card(window, "prompts"), "body").fill("New text.")
        window.page.get_by_text("Changes to the file").click()
        lines = window.page.locator("[data-diff] .is-added").all_inner_texts()
        assert [line.strip() for line in lines] == ["+    system: New text. # short!"]


class TestProblems:
    def test_a_broken_schema_is_told_beside_its_field(self, window: Visit, folder: Path) -> None:
        card(window, "prompts").get_by_label("Evaluation mode").select_option("schema")
        test = open_test(window, 1)
        schema = field(test, "evaluation_schema")
        schema.fill('{"type": "object",}')
        problem = test.locator("[data-field=evaluation_schema] .field-problem")
        problem.get_by_text("line 1, column 19 of this field").wait_for()
        assert schema.get_attribute("aria-invalid") == "true"
        described = str(schema.get_attribute("aria-describedby")).split()[0]
        assert window.page.locator(f"#{described}").get_attribute("aria-live") == "polite"
        schema.fill('{"type": "objekt"}')
        problem.get_by_text("broken JSON Schema").wait_for()
        window.page.get_by_role("button", name="Save", exact=True).click()
        window.page.get_by_text("Not saved").wait_for()
        assert text_of(folder) == SUITE
        schema.fill('{"type": "object"}')
        problem.wait_for(state="detached")
        assert schema.get_attribute("aria-invalid") is None
        save(window)

    def test_problems_are_listed_and_lead_to_their_field(self, window: Visit) -> None:
        field(open_test(window, 2), "assert").fill("- type: icontain\n  value: x")
        card(window, "tests", 2).locator("[data-toggle]").click()
        link = window.page.locator(".problem-link").first
        link.click()
        assert field(card(window, "tests", 2), "assert").evaluate("input => input === document.activeElement")

    def test_a_problem_of_another_file_names_that_file(self, window: Visit, folder: Path) -> None:
        (folder / "more.jsonl").write_text('{"input": "a", "assert": [{"type": "nope"}]}\n', encoding="utf-8")
        text = SUITE.replace("tests:\n", "tests:\n  - file://more.jsonl\n")
        (folder / "suite.yaml").write_text(text, encoding="utf-8")
        open_editor(window)
        said = window.page.locator("#part-suite .field-problem", has_text="nope")
        said.get_by_text(re.compile(r"^more\.jsonl:1:\d+$")).wait_for()
        assert window.page.locator("[data-items=tests] .field-problem").count() == 0

    def test_a_suite_with_problems_can_be_saved_when_one_insists(self, window: Visit, folder: Path) -> None:
        field(card(window, "prompts"), "body").fill("{{ missing }}")
        window.page.get_by_role("button", name="Save", exact=True).click()
        window.page.get_by_role("button", name="Save anyway").click()
        wait_for_state(window, "Saved")
        assert "{{ missing }}" in text_of(folder)


class TestConflict:
    def test_somebody_elses_change_is_not_overwritten(self, window: Visit, folder: Path) -> None:
        theirs = SUITE.replace("A bakery\n", "Their bakery\n")
        field(card(window, "prompts"), "body").fill("Mine.")
        (folder / "suite.yaml").write_text(theirs, encoding="utf-8")
        window.page.keyboard.press("Control+s")
        window.page.get_by_text("The file changed on disk since you opened it").wait_for()
        assert text_of(folder) == theirs
        assert field(card(window, "prompts"), "body").input_value() == "Mine."
        window.page.get_by_role("button", name="Keep my version").click()
        wait_for_state(window, "Saved")
        assert text_of(folder) == SUITE.replace("Answer in one sentence.", "Mine.")

    def test_their_version_can_be_loaded(self, window: Visit, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SUITE.replace("A bakery\n", "Their bakery\n"), encoding="utf-8")
        field(card(window, "prompts"), "body").fill("Mine.")
        window.page.get_by_role("button", name="Reload the file").click()
        window.page.locator("[data-state]", has_text="Saved").wait_for()
        assert field(window.page, "description").first.input_value() == "Their bakery"
        assert field(card(window, "prompts"), "body").input_value() == "Answer in one sentence."


class TestRun:
    def test_it_has_its_page_at_once(self, window: Visit) -> None:
        window.page.get_by_role("button", name="Run", exact=True).click()
        window.page.wait_for_url(re.compile(r"/runs/\d{8}-"))
        window.page.get_by_text("completed", exact=True).wait_for()
        window.page.get_by_role("link", name="Edit the suite").click()
        window.page.wait_for_url("**/suites/edit?path=suite.yaml")

    def test_changes_are_saved_first(self, window: Visit, folder: Path) -> None:
        field(open_test(window, 1), "assert").fill("- type: icontains\n  value: cake")
        window.page.get_by_role("button", name="Save and run").click()
        window.page.wait_for_url(re.compile(r"/runs/\d{8}-"))
        assert "value: cake" in text_of(folder)
        window.page.locator("[data-cell].is-failed").wait_for()

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
        note.get_by_text("A run of this suite is under way").wait_for()
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
        window.page.get_by_text(re.compile("Not started: .*runs code.*--allow-code")).wait_for()


class TestList:
    def test_a_new_suite_is_made_and_opened(self, window: Visit, folder: Path) -> None:
        window.go("/suites")
        window.page.get_by_label("Name of the new suite").fill("suite.yaml")
        window.page.get_by_role("button", name="New suite").click()
        window.page.get_by_text("there is a file suite.yaml already").wait_for()
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
        assert field(card(window, "prompts"), "body").input_value() == hostile
        assert window.page.evaluate("window.hacked === undefined")

    def test_many_tests_are_shown_in_pages_and_found(self, window: Visit, folder: Path) -> None:
        tests = "".join(f"  - input: number {index} is here\n" for index in range(150))
        (folder / "many.yaml").write_text(f"prompts: ['{{{{ input }}}}']\nproviders: [echo]\ntests:\n{tests}")
        open_editor(window, "many.yaml")
        shown = window.page.locator("[data-items=tests] > article")
        assert shown.count() == 50
        pages = window.page.get_by_label("Pages of tests")
        assert pages.get_by_role("button", name="Previous").is_disabled()
        pages.get_by_role("button", name="Next").click()
        pages.get_by_text("51 to 100 of 150").wait_for()
        assert "#51" in shown.first.inner_text()
        pages.get_by_role("button", name="Next").click()
        assert pages.get_by_role("button", name="Next").is_disabled()
        window.page.get_by_label("Find tests").fill("number 149 ")
        assert shown.count() == 1
        field(open_test(window, 1), "input").fill("changed")
        save(window)
        assert (folder / "many.yaml").read_text().endswith("number 148 is here\n  - input: changed\n")


def test_a_narrow_window_needs_no_sideways_scrolling(site: Any, folder: Path, browser: Any) -> None:
    with visit(browser, site.address, viewport={"width": 390, "height": 800}) as window:
        for path in ("/suites", "/suites/edit?path=suite.yaml"):
            window.go(path)
            width = window.page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390


class TestLeftOvers:
    def test_from_llm_to_schema_the_criteria_are_offered_for_removal(
        self, window: Visit, folder: Path
    ) -> None:
        prompt = card(window, "prompts")
        field(prompt, "evaluation_mode").select_option("schema")
        prompt.get_by_text("Left over, and without a meaning in this mode: evaluation criteria.").wait_for()
        prompt.get_by_role("button", name="Remove", exact=True).click()
        assert prompt.get_by_text("Left over").is_hidden()
        save(window)
        assert "evaluation_criteria" not in text_of(folder)
        assert "evaluation_mode: schema" in text_of(folder)
