// What may stand at a place of a suite, by the JSON Schema of configs: keys and values to complete, and what they mean.

const HEAD = /^(\s*)((?:- +)*)(?:("?[\w$-]+"?)\s*:(?:\s|$))?/;

/** The keys and dashes that lead to a line, as its indentation says, and the keys beside it. */
export function pathAt(lines, number) {
  const [, space, dashes] = HEAD.exec(lines[number]);
  const indent = space.length + dashes.length;
  const path = dashes ? Array(dashes.split("-").length - 1).fill(0) : [];
  let start = space.length;
  for (let above = number - 1; above >= 0 && (start > 0 || dashes); above -= 1) {
    const [whole, before, marks, key] = HEAD.exec(lines[above]);
    if (!lines[above].trim() || /^\s*#/.test(lines[above])) continue;
    const column = before.length + marks.length;
    if (marks && column === start && path[0] !== 0 && before.length < start) {
      path.unshift(0); // the keys beside this one began behind a dash
      start = before.length;
      continue;
    }
    const isOwner = key && (column < start || (column === start && path[0] === 0 && !marks)) && whole.trimEnd().endsWith(":");
    if (!isOwner) continue;
    path.unshift(key.replaceAll('"', ""));
    if (marks) {
      path.unshift(0);
      start = before.length;
    } else start = column;
    if (start === 0) break;
  }
  return { path, indent };
}

/** The type that the mapping around a line has, if it says one, and the keys that it has already. */
export function besides(lines, number, indent) {
  const keys = new Map();
  const take = (line) => {
    const [, space, dashes, key] = HEAD.exec(line);
    if (key && space.length + dashes.length === indent) keys.set(key.replaceAll('"', ""), line.slice(line.indexOf(":") + 1).replace(/#.*/, "").trim().replaceAll(/["']/g, ""));
    return [space.length, dashes.length, line.trim()];
  };
  for (let above = number; above >= 0; above -= 1) {
    const [space, dashes, said] = take(lines[above]);
    if (said && (space + dashes < indent || dashes)) break;
  }
  for (let below = number + 1; below < lines.length; below += 1) {
    const [, space, dashes] = HEAD.exec(lines[below]);
    if (lines[below].trim() && (space.length < indent || dashes.length)) break;
    take(lines[below]);
  }
  return keys;
}

export class ConfigSchema {
  constructor(schema) {
    this.schema = schema;
  }

  /** All forms that a schema allows, written out; of forms that a `type` chooses only the fitting one. */
  #forms(schema, type) {
    if (!schema || typeof schema !== "object") return [];
    if (schema.$ref) return this.#forms(this.schema.$defs[schema.$ref.split("/").at(-1)], type);
    const found = [schema];
    for (const part of ["anyOf", "oneOf"]) for (const form of schema[part] ?? []) found.push(...this.#forms(form, type));
    for (const form of schema.allOf ?? []) {
      const named = form.if?.properties?.type?.enum;
      if (named && !named.includes(type)) continue;
      found.push(...this.#forms(form.then ?? form, type));
    }
    if (schema.if && !schema.allOf) found.push(...this.#forms(schema.then, type), ...this.#forms(schema.else, type));
    return found;
  }

  #at(path, type) {
    let forms = this.#forms(this.schema, path.length ? "" : type);
    path.forEach((key, depth) => {
      const here = depth === path.length - 1 ? type : "";
      forms = forms.flatMap((form) => {
        const next = key === 0 ? form.items : form.properties?.[key] ?? (typeof form.additionalProperties === "object" ? form.additionalProperties : undefined);
        return this.#forms(next, here);
      });
    });
    return forms;
  }

  /** The keys of the mapping at a path: name, and what it means. */
  keys(path, type = "") {
    const found = new Map();
    for (const form of this.#at(path, type)) {
      for (const [name, value] of Object.entries(form.properties ?? {})) {
        const about = this.#forms(value, "").find((item) => item.description)?.description ?? "";
        if (!found.get(name)) found.set(name, about);
      }
    }
    return found;
  }

  /** The values that a key may have, where they are few. */
  values(path, type = "") {
    const found = new Set();
    for (const form of this.#at(path, type)) {
      for (const value of form.enum ?? []) if (value !== null) found.add(String(value));
      if (form.const !== undefined) found.add(String(form.const));
      if (form.type === "boolean") found.add("true").add("false");
    }
    return [...found];
  }
}
