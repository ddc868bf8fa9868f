"""Forms of assertions, of sets, of what every test has and of conversations: what they change in the file."""

from pathlib import Path
from textwrap import dedent

from support.browser import Visit
from support.editor_page import (
    assertion,
    card,
    field,
    open_editor,
    open_test,
    save,
    text_of,
    wait_for_state,
    wait_for_value,
)

G_EVAL_SUITE = dedent("""\
    # assertions with comments
    prompts: ["{{ input }}"]
    providers: [echo]
    defaultTest:
      options: { provider: scripted:judge.yaml }
    tests:
      - description: first
        input: one
        assert:
          - type: icontains # any case
            value: bread
          # the judge
          - type: g-eval
            criteria: >-
              Is it friendly, and
              does it answer?
            rubric: { 1: rude, 5: kind }   # inline
            score_range: [1, 5]
            threshold: 0.6
      - { description: second, input: two } # in a line
    """)


def open_assertions(window: Visit, folder: Path, text: str = G_EVAL_SUITE) -> None:
    (folder / "suite.yaml").write_text(text, encoding="utf-8")
    open_editor(window)
    open_test(window, 1)
    assertion(window, "1").wait_for()


class TestAssertionForms:
    def test_a_change_in_the_form_is_a_change_in_the_yaml_and_back_to_the_byte(
        self, window: Visit, folder: Path
    ) -> None:
        open_assertions(window, folder)
        form = assertion(window, "2")
        assert form.get_by_label("Criteria").input_value() == "Is it friendly, and does it answer?"
        form.get_by_label("Threshold").fill("0.8")
        form.get_by_label("Rubric, 2: text").fill("very kind")
        form.get_by_label("Evaluation steps").fill("Read it.\nRate it.")
        save(window)
        changed = G_EVAL_SUITE.replace("0.6", "0.8").replace("5: kind", "5: very kind")
        changed = changed.replace(
            "threshold: 0.8\n",
            """threshold: 0.8
        evaluation_steps:
          - Read it.
          - Rate it.
""",
        )
        assert text_of(folder) == changed
        form.get_by_label("Evaluation steps").fill("")
        form.get_by_label("Rubric, 2: text").fill("kind")
        form.get_by_label("Threshold").fill("0.6")
        save(window)
        assert text_of(folder) == G_EVAL_SUITE

    def test_what_is_typed_in_the_yaml_is_in_the_form(self, window: Visit, folder: Path) -> None:
        open_assertions(window, folder)
        yaml = field(card(window, "tests"), "assert")
        yaml.fill("- type: not-contains-any\n  value: [a, b]\n")
        form = assertion(window, "1")
        wait_for_value(form.get_by_label("Value"), "a\nb")
        assert form.get_by_label("not").is_checked()
        yaml.fill("- type: [")
        window.page.get_by_text("The form comes back when the YAML can be read").wait_for()
        yaml.fill("")
        form.wait_for(state="detached")

    def test_forms_come_back_when_the_server_does(self, window: Visit, folder: Path) -> None:
        (folder / "suite.yaml").write_text(G_EVAL_SUITE, encoding="utf-8")
        page, kinds = window.page, "**/suites/assertions"
        page.route(kinds, lambda route: route.abort() if route.request.method == "GET" else route.fallback())
        open_editor(window)
        open_test(window, 1)
        page.get_by_text("the server cannot be reached").wait_for()
        page.unroute(kinds)
        field(card(window, "tests"), "assert").fill("- type: contains\n  value: a\n")
        assertion(window, "1").get_by_label("Value").fill("b")
        save(window)
        assert "      - type: contains\n        value: b\n" in text_of(folder)
        window.complaints[:] = [text for text in window.complaints if "ERR_FAILED" not in text]

    def test_another_type_offers_to_remove_what_is_left_over(self, window: Visit, folder: Path) -> None:
        open_assertions(window, folder)
        form = assertion(window, "2")
        form.get_by_label("Type of assertion 2").select_option("is-json")
        form.get_by_text(
            "“criteria”, “rubric”, “score_range”, “threshold” mean nothing to is-json."
        ).wait_for()
        form.get_by_role("button", name="Remove them").click()
        form.get_by_text("mean nothing").wait_for(state="detached")
        save(window)
        kept, gone = text_of(folder), G_EVAL_SUITE.partition("      - type: g-eval")
        assert kept.startswith(gone[0] + "      - type: is-json\n")
        assert kept.endswith("  - { description: second, input: two } # in a line\n")
        assert "criteria" not in kept

    def test_assertions_are_added_and_deleted_by_keyboard(self, window: Visit, folder: Path) -> None:
        open_assertions(window, folder)
        page = window.page
        page.get_by_label("Type of the new assertion").select_option("latency")
        page.get_by_role("button", name="Add an assertion").focus()
        page.keyboard.press("Enter")
        assertion(window, "3").get_by_label("Threshold").fill("900")
        assertion(window, "1").get_by_role("button", name="Delete assertion 1").focus()
        page.keyboard.press("Enter")
        assertion(window, "3").wait_for(state="detached")
        page.keyboard.press("Control+s")
        wait_for_state(window, "Saved")
        text = text_of(folder)
        assert "icontains" not in text
        assert "        threshold: 0.6\n      - type: latency\n        threshold: 900\n" in text
        assert "      # the judge\n      - type: g-eval\n" in text

    def test_a_refused_save_is_seen_where_the_eye_is(self, window: Visit, folder: Path) -> None:
        tests = "".join(f"  - {{ input: number {index} }}\n" for index in range(120))
        last = "  - input: last\n    assert:\n      - type: g-eval\n        criteria: Kind?\n        threshold: 0.6\n"
        top = "prompts: ['{{ input }}']\nproviders: [echo]\n"
        judge = "defaultTest: { options: { provider: scripted:judge.yaml } }\n"
        (folder / "suite.yaml").write_text(f"{top}{judge}tests:\n{tests}{last}")
        open_editor(window)
        page = window.page
        page.get_by_label("Find tests").fill("last")
        open_test(window, 1)
        assertion(window, "1").get_by_label("Threshold").fill("7")
        page.get_by_label("Find tests").fill("")
        page.evaluate("scrollTo(0, 0)")
        page.get_by_role("button", name="Save", exact=True).click()
        alert = page.get_by_role("alert").get_by_text("Not saved: the suite has problems")
        alert.wait_for()
        said = page.locator(
            ".assertion-form .is-threshold .field-problem, .assertion-form .field-problem"
        ).first
        said.wait_for()
        assert alert.evaluate(_IS_IN_VIEW)
        assert said.evaluate(_IS_IN_VIEW)
        assert "121" in page.locator("[data-page-text]").inner_text()
        assert "threshold: 0.6" in text_of(folder)


SETS = dedent("""\
    prompts: ["{{ input }}"]
    providers: [echo]
    defaultTest: # of all
      # the judge
      options: { provider: scripted:judge.yaml }
      threshold: 0.5 # half
    tests:
      - description: first
        input: one
        assert:
          - type: assert-set # together
            threshold: 0.5 # half of them
            assert:
              - type: contains # any case
                value: bread
              - { type: latency, threshold: 900 }
          - type: g-eval
            checklist:
              - It names bread # rye
              - item: It is kind
                weight: 2
      - turns:
          # how it begins
          - user: Hello # kindly
          - user: And now?
    """)


class TestSets:
    def test_members_have_forms_of_their_own(self, window: Visit, folder: Path) -> None:
        open_assertions(window, folder, SETS)
        assertion(window, "1 of set 1").get_by_label("Value").fill("rye")
        assertion(window, "2 of set 1").get_by_label("Threshold").fill("800")
        assertion(window, "1").get_by_label("Threshold").first.fill("0.7")
        save(window)
        changed = SETS.replace("value: bread", "value: rye").replace("900", "800")
        assert text_of(folder) == changed.replace("0.5 # half of", "0.7 # half of")

    def test_members_have_the_width_of_a_phone(self, window: Visit, folder: Path) -> None:
        open_assertions(window, folder, SETS)
        window.page.set_viewport_size({"width": 390, "height": 844})
        outside = assertion(window, "1").get_by_label("Metric").first.bounding_box()["width"]
        inside = assertion(window, "1 of set 1").get_by_label("Value").bounding_box()["width"]
        is_wider = window.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        window.page.set_viewport_size({"width": 1440, "height": 900})
        assert inside > 0.95 * outside > 270
        assert not is_wider

    def test_members_are_added_and_deleted(self, window: Visit, folder: Path) -> None:
        open_assertions(window, folder, SETS)
        adder = window.page.get_by_label("Type of the new assertion of set 1")
        assert adder.locator("option", has_text="assert-set").count() == 0
        adder.select_option("cost")
        window.page.get_by_role("button", name="Add to the set").click()
        added = assertion(window, "3 of set 1")
        added.get_by_label("Threshold").fill("0.01")
        added.get_by_role("button", name="Delete assertion 3 of set 1").wait_for()
        assertion(window, "2 of set 1").get_by_role("button", name="Delete assertion 2 of set 1").click()
        added.wait_for(state="detached")
        save(window)
        assert text_of(folder) == SETS.replace(
            "- { type: latency, threshold: 900 }\n", f"- type: cost\n{' ' * 12}threshold: 0.01\n"
        )

    def test_problems_of_a_member_are_said_in_its_form(self, window: Visit, folder: Path) -> None:
        open_assertions(window, folder, SETS)
        assertion(window, "2 of set 1").get_by_label("Threshold").fill("soon")
        said = assertion(window, "2 of set 1").locator(".is-number .field-problem")
        said.wait_for()
        assert "must be a number" in said.inner_text()
        window.page.locator("[data-toggle]").last.focus()
        window.page.locator(".problem-link").first.click()
        input = assertion(window, "2 of set 1").get_by_label("Threshold")
        window.page.wait_for_function("() => document.activeElement.value === 'soon'")
        assert input.evaluate("input => input === document.activeElement")

    def test_a_checklist_has_a_row_for_each_item(self, window: Visit, folder: Path) -> None:
        open_assertions(window, folder, SETS)
        form = assertion(window, "2")
        form.get_by_label("Weight of item 2").fill("3")
        form.get_by_label("required, item 1").check()
        form.get_by_role("button", name="Add an item").click()
        form.get_by_label("Checklist, item 3").fill("It ends")
        save(window)
        row = f"- item: It names bread # rye\n{' ' * 12}required: true"
        changed = SETS.replace("- It names bread # rye", row)
        assert text_of(folder) == changed.replace("weight: 2\n", f"weight: 3\n{' ' * 10}- It ends\n")
        form.get_by_label("Remove item 3").click()
        form.get_by_label("Weight of item 2").fill("2")
        save(window)
        assert text_of(folder) == changed


class TestDefaultTest:
    def test_it_has_the_forms_of_a_test(self, window: Visit, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SETS, encoding="utf-8")
        open_editor(window)
        default = card(window, "default_test")
        default.locator("[data-toggle]").click()
        assert "# half" in field(default, "more").input_value()
        default.get_by_label("Type of the new assertion").select_option("contains")
        default.get_by_role("button", name="Add an assertion").click()
        default.get_by_label("Value").fill("bread")
        field(default, "vars").fill("tone: kind # always")
        save(window)
        added = "  vars:\n    tone: kind # always\n  assert:\n    - type: contains\n      value: bread\n"
        assert text_of(folder) == SETS.replace("tests:\n", f"{added}tests:\n")

    def test_what_is_wrong_with_it_is_said_there(self, window: Visit, folder: Path) -> None:
        default = card(window, "default_test")
        default.locator("[data-toggle]").click()
        field(default, "more").fill("options: { provider: scripted:judge.yaml }\nthreshold: high")
        default.locator("[data-field=more] .field-problem", has_text="threshold").wait_for()
        window.page.locator(".problem-link", has_text="threshold").click()
        assert field(default, "more").evaluate("input => input === document.activeElement")

    def test_it_survives_a_reload_before_it_is_saved(self, window: Visit, folder: Path) -> None:
        default = card(window, "default_test")
        default.locator("[data-toggle]").click()
        field(default, "input").fill("kept")
        window.page.wait_for_function(
            "() => Object.keys(localStorage).some((key) => key.startsWith('geval-draft'))"
        )
        window.page.on("dialog", lambda dialog: dialog.accept())
        open_editor(window)
        assert field(card(window, "default_test"), "input").input_value() == "kept"


class TestConversations:
    def test_turns_are_forms_beside_their_yaml(self, window: Visit, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SETS, encoding="utf-8")
        open_editor(window)
        test = open_test(window, 2)
        assert "2 turns" in test.inner_text()
        test.get_by_label("What turn 1 says").fill("Good day")
        test.get_by_role("button", name="Add a turn").click()
        test.get_by_label("What turn 3 says").fill("Bye: now")
        save(window)
        text = text_of(folder)
        assert "      # how it begins\n      - user: Good day # kindly\n      - user: And now?\n" in text
        assert text.endswith('      - user: "Bye: now"\n') or text.endswith("      - user: 'Bye: now'\n")
        test.get_by_role("button", name="Delete turn 3").click()
        test.get_by_label("What turn 1 says").fill("Hello")
        test.get_by_label("What turn 3 says").wait_for(state="detached")
        save(window)
        assert text_of(folder) == SETS

    def test_on_a_slow_network_nothing_is_done_to_another_turn(self, window: Visit, folder: Path) -> None:
        talk = SETS + "      - user: Third\n      - user: Fourth\n"
        (folder / "suite.yaml").write_text(talk, encoding="utf-8")
        open_editor(window)
        test = open_test(window, 2)
        third = test.get_by_label("What turn 3 says")
        third.wait_for()
        window.page.evaluate(_SLOW_NETWORK)
        third.fill("Third, changed")
        test.get_by_role("button", name="Delete turn 2").click()
        third.focus()
        window.page.keyboard.type("lost")
        test.get_by_role("button", name="Delete turn 3").click()
        test.get_by_label("What turn 4 says").wait_for(state="detached")
        test.get_by_label("What turn 3 says").fill("Fourth, changed")
        save(window)
        wanted = talk.replace("      - user: And now?\n", "")
        assert text_of(folder) == wanted.replace("Third", "Third, changed").replace(
            "Fourth", "Fourth, changed"
        )

    def test_on_a_slow_network_a_form_shows_the_type_that_the_yaml_has(
        self, window: Visit, folder: Path
    ) -> None:
        text = (
            "prompts: [x]\nproviders: [echo]\ntests:\n  - assert:\n      - type: contains\n        value: x\n"
        )
        (folder / "suite.yaml").write_text(text, encoding="utf-8")
        open_editor(window)
        test = open_test(window, 1)
        chosen = test.get_by_label("Type of assertion 1")
        chosen.wait_for()
        window.page.evaluate(_SLOW_NETWORK)
        test.get_by_label("not").check()
        chosen.select_option("icontains")
        save(window)
        assert text_of(folder) == text.replace("contains", "not-contains")
        assert chosen.input_value() == "contains"


_SLOW_NETWORK = """() => {
  const ask = window.fetch;
  window.fetch = async (...words) => {
    await new Promise((resolve) => setTimeout(resolve, 400));
    return ask(...words);
  };
}"""

_IS_IN_VIEW = """(element) => {
  const { top, bottom } = element.getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight;
}"""
