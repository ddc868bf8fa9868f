// The YAML of a suite in CodeMirror: highlighted, completed by the schema of configs, with problems at their lines.

import {
  Annotation, autocompletion, bracketMatching, closeBrackets, closeBracketsKeymap, completionKeymap, defaultKeymap, drawSelection,
  EditorState, EditorView, foldGutter, foldKeymap, highlightActiveLine, HighlightStyle, highlightSelectionMatches, history, historyKeymap,
  keymap, lineNumbers, lintGutter, lintKeymap, search, searchKeymap, setDiagnostics, syntaxHighlighting, tags, yaml,
} from "./vendor/codemirror.js";
import { besides, ConfigSchema, pathAt } from "./editor-schema.js";

const fromForm = Annotation.define();
const KEY = /^\s*(?:- +)*("?[\w$-]*)$/;
const VALUE = /^\s*(?:- +)*"?([\w$-]+)"?:\s+["']?([\w-]*)$/;

const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.string, tags.special(tags.string), tags.content], color: "var(--text)" },
  { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" },
  { tag: [tags.number, tags.bool, tags.null, tags.keyword], color: "var(--passed)" },
  { tag: [tags.punctuation, tags.separator, tags.squareBracket, tags.brace, tags.meta], color: "var(--muted)" },
]);

const look = EditorView.theme({
  "&": { height: "100%", backgroundColor: "var(--surface)", color: "var(--text)", fontSize: "13px" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--monospace)", lineHeight: "20px" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--sunken)", color: "var(--muted)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine": { backgroundColor: "light-dark(#4b45d60f, #a3a5ff0f)" },
  ".cm-activeLineGutter": { backgroundColor: "transparent" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--accent-soft)" },
  ".cm-tooltip, .cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)", border: "1px solid var(--line-strong)" },
  ".cm-tooltip": { maxWidth: "420px" },
  ".cm-completionInfo": { fontFamily: "var(--sans)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  // CodeMirror draws these with images that the page's policy does not load.
  ".cm-lintRange-error": { backgroundImage: "none", textDecoration: "underline wavy var(--failed)" },
  ".cm-lintRange-warning": { backgroundImage: "none", textDecoration: "underline wavy var(--error)" },
  ".cm-lint-marker": { content: "''", width: "9px", height: "9px", margin: "6px 2px", borderRadius: "50%" },
  ".cm-lint-marker-error": { content: "''", backgroundColor: "var(--failed)" },
  ".cm-lint-marker-warning": { content: "''", backgroundColor: "var(--error)" },
  ".cm-diagnostic": { fontFamily: "var(--sans)" },
  ".cm-textfield, .cm-button": { backgroundColor: "var(--surface)", backgroundImage: "none", color: "var(--text)", border: "1px solid var(--line-strong)" },
});

/** Begin a line below the keys of this one; below a key without a value, two further in. */
function beginLine(view) {
  const { state } = view;
  const { head } = state.selection.main;
  const line = state.doc.lineAt(head);
  const before = line.text.slice(0, head - line.from);
  const [, space, dashes] = /^(\s*)((?:- +)*)/.exec(before);
  const isOpen = /(:|[|>][-+]?)\s*(#.*)?$/.test(before);
  const indent = " ".repeat(space.length + dashes.length + (isOpen ? 2 : 0));
  view.dispatch(state.replaceSelection(state.lineBreak + indent), { scrollIntoView: true, userEvent: "input" });
  return true;
}

/** The editor of a text, in a tree of its own: its styles are made by script, which the page's policy allows only there. */
export class CodeEditor {
  #view;
  #loading;

  constructor(place, text, { onChange, label }) {
    const root = place.attachShadow({ mode: "open" });
    // Text goes back byte for byte: one that has lines of both kinds keeps its carriage returns as characters.
    const isWindows = text.includes("\r\n") && !/[^\r]\n|^\n/.test(text);
    const state = EditorState.create({
      doc: text,
      extensions: [
        EditorState.lineSeparator.of(isWindows ? "\r\n" : "\n"),
        EditorView.clipboardInputFilter.of((pasted, { lineBreak }) => pasted.replaceAll(/\r\n?|\n/g, lineBreak)),
        lineNumbers(), foldGutter(), lintGutter(), history(), drawSelection(), bracketMatching(), closeBrackets(),
        autocompletion({ override: [(context) => this.#complete(context)] }), highlightActiveLine(), highlightSelectionMatches(), search({ top: true }),
        keymap.of([{ key: "Enter", run: beginLine }, ...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...foldKeymap, ...completionKeymap, ...lintKeymap]),
        yaml(), syntaxHighlighting(colours), look, EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false", tabindex: "0" }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) onChange({ isFromForm: update.transactions.some((one) => one.annotation(fromForm)) });
        }),
      ],
    });
    this.#view = new EditorView({ state, parent: root, root });
    this.#loading = fetch("/suites/schema.json").then((answer) => answer.json()).then((schema) => new ConfigSchema(schema)).catch(() => null);
  }

  /** The text as it is saved. */
  get text() {
    const { state } = this.#view;
    return state.doc.sliceString(0, state.doc.length, state.lineBreak);
  }

  /** The text with one character for each end of a line, as the places of changes count. */
  get plainText() {
    return this.#view.state.doc.toString();
  }

  replace(text) {
    const { state } = this.#view;
    this.#view.dispatch({ changes: { from: 0, to: state.doc.length, insert: state.toText(text) } });
  }

  /** Make a change of the form's; with `userEvent`, one that Ctrl+Z takes back by itself. */
  change(change) {
    const insert = this.#view.state.toText(change.insert.replaceAll("\n", this.#view.state.lineBreak));
    this.#view.dispatch({ changes: { ...change, insert }, annotations: fromForm.of(true), userEvent: "input.form" });
  }

  goTo(from, to = from, { focus = true } = {}) {
    const end = this.#view.state.doc.length;
    this.#view.dispatch({ selection: { anchor: Math.min(from, end), head: Math.min(to, end) }, effects: EditorView.scrollIntoView(Math.min(from, end), { y: "center" }) });
    if (focus) this.#view.focus();
  }

  offsetOf(line, column) {
    const { doc } = this.#view.state;
    const found = doc.line(Math.min(Math.max(line, 1), doc.lines));
    return Math.min(found.from + Math.max(column - 1, 0), found.to);
  }

  showProblems(problems) {
    const { doc } = this.#view.state;
    const found = problems.filter((problem) => problem.line && !problem.file).map((problem) => {
      const from = this.offsetOf(problem.line, problem.column ?? 1);
      const { to } = doc.lineAt(from);
      const message = problem.hint ? `${problem.message}: ${problem.hint}` : problem.message;
      return { from, to: Math.max(from, to), severity: problem.severity === "error" ? "error" : "warning", message };
    });
    this.#view.dispatch(setDiagnostics(this.#view.state, found.sort((one, other) => one.from - other.from)));
  }

  async #complete(context) {
    const schema = await this.#loading;
    if (!schema) return null;
    const line = context.state.doc.lineAt(context.pos);
    const lines = context.state.doc.toString().split("\n");
    const { path, indent } = pathAt(lines, line.number - 1);
    const keys = besides(lines, line.number - 1, indent);
    const before = line.text.slice(0, context.pos - line.from);
    const value = VALUE.exec(before);
    if (value) {
      const options = schema.values([...path, value[1]], keys.get("type")).map((label) => ({ label, type: "enum" }));
      return options.length ? { from: context.pos - value[2].length, options } : null;
    }
    const key = KEY.exec(before);
    if (!key || (!key[1] && !context.explicit && before.trim() !== "-")) return null;
    const options = [...schema.keys(path, keys.get("type"))].filter(([name]) => !keys.has(name) || name === key[1]);
    const from = context.pos - key[1].length;
    return { from, options: options.map(([label, info]) => ({ label, info: info || undefined, type: "property", apply: `${label}: ` })), validFor: /^[\w$-]*$/ };
  }
}
