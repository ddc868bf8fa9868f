// Changes of single values in the text of a suite. Each is a piece of the text and what is to stand there; nothing else
// of the file changes, neither comments nor the way in which other values are written.

import { isAlias, isMap, isScalar, isSeq, parse, parseDocument } from "./vendor/codemirror.js";

const NO_WORD = /^(y|n|yes|no|on|off|true|false|null|nan|inf)$/i;
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\ufeff]/g;

/** The suite that a text holds; null where it cannot be read, or is none. */
export function readSuite(text) {
  const found = parseDocument(text, { logLevel: "silent", prettyErrors: false });
  return found.errors.length || !isMap(found.contents) ? null : new SuiteText(text, found.contents);
}

const hexed = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
const quoted = (value) => JSON.stringify(value).replace(ODD, hexed);

function isPlain(value) {
  if (!/^[A-Za-z\u00c0-\u024f]/.test(value) || /[\n\t]|\s$/.test(value) || value.search(ODD) >= 0 || NO_WORD.test(value)) return false;
  try {
    return parse(`k: ${value}\n`).k === value;
  } catch {
    return false;
  }
}

const isLiteral = (value) => value !== "" && !/^[ \t\n]/.test(value) && !/\n[ \t]+$|\n[ \t]*\n$/.test(value) && !value.includes("\r") && value.search(ODD) < 0;

/** Whether a text stands for a number or for true or false, as what it replaces did. */
const isOfKind = (value, type) => (type === "number" ? String(Number(value)) === value && Number.isFinite(Number(value)) && !value.includes("e") : type === "boolean" && /^(true|false)$/.test(value));

/** A text as a scalar: in the way in which it was written, as long as that works. */
function scalarText(value, { indent, isFlow, type = "PLAIN" }) {
  if (isOfKind(value, type)) return value;
  if (isFlow) return quoted(value);
  const wasBlock = type === "BLOCK_LITERAL" || type === "BLOCK_FOLDED";
  if ((value.includes("\n") || wasBlock) && isLiteral(value)) {
    const lines = value.replace(/\n$/, "").split("\n").map((line) => (line ? " ".repeat(indent) + line : ""));
    return [value.endsWith("\n") ? "|" : "|-", ...lines].join("\n");
  }
  if (value.includes("\n")) return quoted(value);
  if (type === "QUOTE_SINGLE" && value.search(ODD) < 0) return `'${value.replaceAll("'", "''")}'`;
  return type !== "QUOTE_DOUBLE" && isPlain(value) ? value : quoted(value);
}

const isFlow = (node) => Boolean(node?.flow);

const keyed = (key, text) => `${key}:${text.startsWith("\n") ? "" : " "}${text}`;

function behindHead(text, comment) {
  const [head, ...lines] = text.startsWith("|") ? text.split("\n") : [text];
  return [head + comment, ...lines].join("\n");
}

export class SuiteText {
  constructor(text, root) {
    this.text = text;
    this.root = root;
  }

  /** The node at a path of keys and numbers; undefined where there is none. A single prompt stands for a list of one. */
  at(path) {
    let node = this.root;
    for (const [depth, key] of path.entries()) {
      if (isMap(node)) node = node.items.find((pair) => pair.key?.value === key)?.value ?? undefined;
      else if (isSeq(node)) node = node.items[key];
      else if (!(depth === 1 && key === 0 && node)) return undefined;
      else continue;
      if (depth === 0 && typeof path[1] === "number" && path[1] === 0 && isMap(node)) return this.at([...path.slice(0, 1), ...path.slice(2)]);
    }
    return node ?? undefined;
  }

  /** How many items a list has. */
  count(name) {
    const node = this.at([name]);
    if (isSeq(node)) return node.items.length;
    return node && !(isScalar(node) && node.value === null) && name !== "tests" ? 1 : 0;
  }

  /** What is there, as plain data; undefined where nothing is. */
  value(path) {
    const node = this.at(path);
    return node === undefined || isAlias(node) ? undefined : node.toJSON();
  }

  /** Whether a value can be changed: not one that only repeats what stands elsewhere. */
  canChange(path) {
    return path.every((_, depth) => !isAlias(this.at(path.slice(0, depth + 1))));
  }

  #column(offset) {
    return offset - this.text.lastIndexOf("\n", offset - 1) - 1;
  }

  #lineEnd(offset) {
    const end = this.text.indexOf("\n", offset);
    return end < 0 ? this.text.length : end;
  }

  /** Where the text of a node ends, with what stands behind it on the line; blank lines after it are not its own. */
  #endOf(node) {
    const end = node.range[0] + this.text.slice(node.range[0], node.range[1]).trimEnd().length;
    const rest = this.text.slice(end, this.#lineEnd(end));
    return /^\s*(#.*)?$/.test(rest) ? end + rest.length : end;
  }

  #pair(path) {
    const parent = path.length > 1 ? this.at(path.slice(0, -1)) : this.root;
    return isMap(parent) ? [parent, parent.items.findIndex((pair) => pair.key?.value === path.at(-1))] : [parent, -1];
  }

  #endOfPair(pair) {
    return pair.value && !(isScalar(pair.value) && pair.value.range[0] === pair.value.range[1]) ? this.#endOf(pair.value) : this.#lineEnd(pair.key.range[1]);
  }

  /** How a value is written: plain, quoted or as a block; or that it is no text, but a "number" or a "boolean". */
  style(path) {
    const node = this.at(path);
    return isScalar(node) && ["number", "boolean"].includes(typeof node.value) ? typeof node.value : node?.type;
  }

  /** Write a text at a path, in a style where that is possible: without one, as it is written. */
  set(path, value, style) {
    const change = this.#set(path, value, style);
    // A block at the end of a text that has no end of line would be one without its own.
    return change.to === this.text.length && change.insert.includes("\n") ? { ...change, insert: `${change.insert}\n` } : change;
  }

  #set(path, value, style) {
    const node = this.at(path);
    if (isScalar(node) && node.range[0] < node.range[1]) {
      const old = this.text.slice(node.range[0], node.range[1]);
      const wasBlock = node.type?.startsWith("BLOCK");
      const tail = wasBlock ? /\s*$/.exec(old)[0].replaceAll(/[^\n]/g, "") : "";
      const comment = wasBlock ? /^[^\n]*?([ \t]+#[^\n]*)/.exec(old)?.[1] ?? "" : "";
      const [parent] = this.#pair(path);
      const indent = this.#indentBelow(parent, node, path);
      const text = scalarText(value, { indent, isFlow: isFlow(parent), type: style ?? this.style(path) });
      const [insert, to] = wasBlock ? [behindHead(text, comment), node.range[1]] : this.#withComment(text, node.range[1]);
      return { from: node.range[0], to, insert: insert + tail };
    }
    return this.#write(path, (place) => scalarText(value, place));
  }

  /** Write JSON at a path, over whatever is there. */
  setJson(path, value) {
    return this.#write(path, ({ indent, isFlow }) => {
      if (isFlow) return JSON.stringify(value);
      return JSON.stringify(value, null, 2).replaceAll("\n", `\n${" ".repeat(indent)}`);
    });
  }

  /** A comment behind a text stays behind its head when the text becomes a block, of which it would be a part. */
  #withComment(text, to) {
    const rest = this.text.slice(to, this.#lineEnd(to));
    return text.startsWith("|") && /^\s*#/.test(rest) ? [behindHead(text, rest), to + rest.length] : [text, to];
  }

  #indentBelow(parent, node, path) {
    if (isMap(parent)) return this.#column(parent.items[0].key.range[0]) + 2;
    return isSeq(parent) ? this.#column(parent.range[0]) + 2 : path.length > 1 ? 2 : this.#column(node.range[0]);
  }

  #write(path, render) {
    const [parent, index] = this.#pair(path);
    const key = path.at(-1);
    if (isMap(parent) && index >= 0) {
      const pair = parent.items[index];
      const from = this.text.indexOf(":", pair.key.range[1]) + 1;
      const old = pair.value ? this.text.slice(pair.value.range[0], pair.value.range[1]).trimEnd() : "";
      const end = old || pair.value?.tag || pair.value?.anchor ? pair.value.range[0] + old.length : from;
      const text = render({ indent: this.#column(parent.items[0].key.range[0]) + 2, isFlow: isFlow(parent) });
      const [insert, to] = this.#withComment(text, Math.max(from, end));
      return { from, to, insert: insert.startsWith("\n") ? insert : ` ${insert}` };
    }
    if (isMap(parent)) return this.#newPair(parent, key, render);
    const owner = parent ?? null;
    if (owner && isScalar(owner) && owner.range[0] < owner.range[1] && owner.value !== null) return this.#written(owner, path, render);
    return this.#firstPair(path, render);
  }

  #newPair(parent, key, render) {
    if (isFlow(parent)) {
      const last = parent.items.at(-1);
      const from = last ? (last.value ?? last.key).range[1] : parent.range[0] + 1;
      return { from, to: from, insert: `${last ? ", " : ""}${quoted(key)}: ${render({ indent: 0, isFlow: true })}` };
    }
    const indent = this.#column(parent.items[0].key.range[0]);
    const from = this.#endOfPair(parent.items.at(-1));
    return { from, to: from, insert: `\n${" ".repeat(indent)}${keyed(key, render({ indent: indent + 2, isFlow: false }))}` };
  }

  /** A prompt that was a text alone gets a second key. */
  #written(node, path, render) {
    const short = "raw";
    const list = this.at(path.slice(0, 1));
    const key = path.at(-1);
    if (isFlow(list)) return { from: node.range[0], to: node.range[1], insert: `{ ${quoted(short)}: ${quoted(node.value)}, ${quoted(key)}: ${render({ indent: 0, isFlow: true })} }` };
    const isItem = isSeq(list);
    const column = isItem ? this.#column(list.range[0]) + 2 : 2;
    const text = scalarText(node.value, { indent: column + 2, isFlow: false, type: node.type });
    const old = this.text.slice(node.range[0], node.range[1]);
    const space = " ".repeat(column);
    const first = isItem ? "" : `\n${space}`;
    const [insert, to] = this.#withComment(render({ indent: column + 2, isFlow: false }), node.range[0] + old.trimEnd().length);
    return { from: node.range[0], to, insert: `${first}${short}: ${text}\n${space}${key}: ${insert}` };
  }

  /** The first key of an item that is empty, or of a mapping that is not there yet. */
  #firstPair(path, render) {
    const key = path.at(-1);
    if (path.length === 1) {
      const from = this.text.trimEnd().length;
      return { from, to: from, insert: `\n${keyed(key, render({ indent: 2, isFlow: false }))}` };
    }
    if (typeof path.at(-2) === "string") {
      return this.#write(path.slice(0, -1), ({ indent, isFlow }) => (isFlow ? `{ ${quoted(key)}: ${render({ indent: 0, isFlow: true })} }` : `\n${" ".repeat(indent)}${keyed(key, render({ indent: indent + 2, isFlow: false }))}`));
    }
    const list = this.at(path.slice(0, -2));
    const item = list.items[path.at(-2)];
    return { from: item.range[0], to: item.range[1], insert: `${this.text[item.range[0] - 1] === "-" ? " " : ""}${keyed(key, render({ indent: this.#column(list.range[0]) + 4, isFlow: false }))}` };
  }

  /** Take a key and its value out; null where there is none. */
  remove(path) {
    const [parent, index] = this.#pair(path);
    if (!isMap(parent) || index < 0) return null;
    const pair = parent.items[index];
    const start = pair.key.range[0];
    const next = parent.items[index + 1];
    if (isFlow(parent)) {
      const end = (pair.value ?? pair.key).range[1];
      if (next) return { from: start, to: next.key.range[0], insert: "" };
      const before = parent.items[index - 1];
      return { from: before ? (before.value ?? before.key).range[1] : start, to: end, insert: "" };
    }
    const lineStart = start - this.#column(start);
    if (this.text.slice(lineStart, start).trim() === "") return { from: lineStart, to: Math.min(this.#endOfPair(pair) + 1, this.text.length), insert: "" };
    if (next) return { from: start, to: next.key.range[0], insert: "" };
    return { from: start, to: this.#endOfPair(pair), insert: "{}" };
  }

  /**
   * Add an item to a list, which is made where it is not there: lines of YAML, or for a list in brackets the same as JSON.
   * Null where something else stands there; what stands for a whole list of the suite becomes its first item.
   */
  add(path, lines, json) {
    const node = this.at(path);
    const item = (indent) => `\n${" ".repeat(indent)}- ${lines.join(`\n${" ".repeat(indent + 2)}`)}`;
    if (isSeq(node) && (!node.flow || node.items.length)) {
      const from = node.flow ? node.items.at(-1).range[1] : this.#endOf(node);
      return { from, to: from, insert: node.flow ? `, ${JSON.stringify(json)}` : item(this.#column(node.range[0])) };
    }
    if (node && !isSeq(node) && !(isScalar(node) && node.value === null)) {
      if (path.length > 1) return null;
      if (isFlow(this.root)) return this.setJson(path, [json]);
      const old = this.text.slice(node.range[0], node.range[1]).trimEnd();
      const from = this.text.lastIndexOf(":", node.range[0]) + 1;
      return { from, to: node.range[0] + old.length, insert: `\n  - ${old.replaceAll("\n", "\n  ")}${item(2)}` };
    }
    return this.#write(path, (place) => (place.isFlow ? JSON.stringify([json]) : item(place.indent)));
  }

  /** Where an item of a list begins and ends, with its dash. */
  span(name, index) {
    const node = this.at([name]);
    if (!isSeq(node)) return null;
    const item = node.items[index];
    const from = node.flow ? item.range[0] : this.text.lastIndexOf("-", item.range[0] - (item.range[0] > 0 ? 1 : 0));
    return { from, to: node.flow ? item.range[1] : this.#endOf(item), isFlow: Boolean(node.flow) };
  }

  removeItem(name, index) {
    const node = this.at([name]);
    const span = this.span(name, index);
    if (!span) return null;
    if (node.items.length === 1) {
      const from = this.text.lastIndexOf(":", node.range[0]) + 1;
      return { from, to: Math.max(span.to, span.isFlow ? node.range[1] : 0), insert: " []" };
    }
    if (span.isFlow) {
      const next = node.items[index + 1];
      return next ? { from: span.from, to: next.range[0], insert: "" } : { from: node.items[index - 1].range[1], to: span.to, insert: "" };
    }
    return { from: span.from - this.#column(span.from), to: Math.min(span.to + 1, this.text.length), insert: "" };
  }

  copyItem(name, index) {
    const span = this.span(name, index);
    if (!span) return null;
    const source = this.text.slice(span.from, span.to);
    const before = span.isFlow ? ", " : `\n${" ".repeat(this.#column(span.from))}`;
    return { from: span.to, to: span.to, insert: before + source };
  }

  /** Where a key or an item stands, for a cursor that goes there. */
  place(path) {
    const [parent, index] = this.#pair(path);
    if (isMap(parent) && index >= 0) return parent.items[index].key.range[0];
    return this.at(path)?.range?.[0] ?? 0;
  }
}
