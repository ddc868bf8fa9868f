// What a user's code finds around it, and how its result gets out: as JSON text in the global `geval outcome`,
// a name that no variable can have: code may assign to `outcome` without declaring it.
(function () {
  const { parse, stringify } = JSON;
  const Code = Function;
  const LONGEST = 16 * 1024 * 1024;
  const ELSEWHERE = new Set([
    "AbortController", "Blob", "FormData", "Headers", "Request", "Response", "WebAssembly", "XMLHttpRequest",
    "__dirname", "__filename", "clearInterval", "clearTimeout", "crypto", "fetch", "global", "setImmediate",
    "setInterval", "setTimeout",
  ]);

  class Unavailable extends Error {}

  function absent(name) {
    const refuse = () => {
      throw new Unavailable(name + " is not available: the code is run without access to anything");
    };
    return new Proxy(function () {}, { get: refuse, set: refuse, apply: refuse, construct: refuse, has: refuse });
  }

  // For platform.js, which takes it away again.
  globalThis.refuse = (what) => {
    throw new Unavailable(what + " is not available here");
  };

  const silent = () => {};
  globalThis.console = Object.fromEntries(
    ["assert", "debug", "dir", "error", "info", "log", "table", "time", "timeEnd", "trace", "warn"].map((name) => [name, silent]),
  );
  globalThis.process = absent("process");
  globalThis.require = absent("require");

  function described(error, firstLine, lines) {
    const isError = error instanceof Error;
    const message = isError ? error.message : typeof error === "string" ? error : stringify(error) || String(error);
    const stack = isError ? String(error.stack || "") : "";
    const at = /<input>:(\d+)/.exec(stack);
    const unknown = isError && /^'?(\w+)'? is not defined$/.exec(message);
    return {
      error: isError && error.name !== "Error" ? error.name + ": " + message : message,
      line: at && firstLine ? Math.min(Math.max(1, Number(at[1]) - firstLine + 1), lines) : null,
      isUnavailable: error instanceof Unavailable || Boolean(unknown && ELSEWHERE.has(unknown[1])),
    };
  }

  function tell(found) {
    globalThis["geval outcome"] = stringify(found).replace(
      /[\u007f-\uffff]/g, (unit) => "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0"),
    );
  }

  function plain(key, value) {
    if (typeof value === "bigint") {
      return Number.isSafeInteger(Number(value)) ? Number(value) : value.toString();
    }
    return value;
  }

  const linesOf = (text) => text.split("\n").length;

  function deliver(value) {
    try {
      write(value);
    } catch (error) {
      tell(described(error, null));
    }
  }

  function write(value) {
    if (typeof value === "number" && !Number.isFinite(value)) {
      return tell({ type: "number", number: String(value) });
    }
    if (typeof value?.score === "number" && !Number.isFinite(value.score)) {  // JSON would make null of it
      return tell({ type: "number", number: String(value.score) });
    }
    const text = stringify(value, plain);
    if (text !== undefined && text.length > LONGEST) {
      return tell({ error: "the result is longer than 16 MB", line: null, isUnavailable: true });
    }
    tell({ type: value === null ? "null" : typeof value, json: text });
  }

  // Each way to read a snippet, with the line of the compiled text in which its first line stands.
  const asExpression = (names, text) => [new Code(...names, "return (\n" + text.replace(/;+\s*$/, "") + "\n)"), 4];
  const asBody = (names, text) => [new Code(...names, text), 3];
  const asStatements = (names, text) => [new Code(...names, "return eval(" + stringify(text) + ")"), 1];

  function compiled(names, text) {
    const isLong = text.trim().includes("\n");
    let first;
    try {
      return asExpression(names, text.trimEnd());
    } catch (error) {
      first = [error, 4];
    }
    try {
      const body = asBody(names, text);
      // Without `return`, the value of the last statement is meant.
      return /\breturn\b/.test(text) ? body : asStatements(names, text);
    } catch (error) {
      const [shown, line] = isLong || /\breturn\b/.test(text) ? [error, 3] : first;
      throw Object.assign(new Unavailable(""), { told: described(shown, line, linesOf(text)) });
    }
  }

  function exported(text) {
    const late = [];
    const name = (found) => found.split(/\s+as\s+/).map((part) => part.trim());
    const common = text
      .replace(/^([ \t]*)export\s+default\s+/gm, "$1module.exports.default = ")
      .replace(/^([ \t]*)export\s+((?:async\s+)?function\s*\*?|class)\s+([\w$]+)/gm, (_, space, kind, own) => {
        late.push([own, own]);
        return space + kind + " " + own;
      })
      .replace(/^([ \t]*)export\s+(const|let|var)\s+([\w$]+)/gm, (_, space, kind, own) => {
        late.push([own, own]);
        return space + kind + " " + own;
      })
      .replace(/^[ \t]*export\s*\{([^}]*)\}\s*;?/gm, (_, list) => {
        for (const [own, shown] of list.split(",").filter((item) => item.trim()).map(name)) {
          late.push([own, shown || own]);
        }
        return "";
      });
    return common + late.map(([own, shown]) => "\nmodule.exports[" + stringify(shown) + "] = " + own + ";").join("");
  }

  function exportsOf(text) {
    const module = { exports: {} };
    new Code("module", "exports", exported(text))(module, module.exports);
    return module.exports;
  }

  function loaded(text, wanted, example) {
    const found = exportsOf(text);
    const own = found && found.default;
    if (wanted) {
      const chosen = wanted.split(".").reduce((part, key) => (part == null ? undefined : part[key]), found);
      const inner = own && own[wanted];
      if (typeof chosen !== "function" && typeof inner !== "function") {
        throw new Unavailable("the file exports no function `" + wanted + "`");
      }
      return typeof chosen === "function" ? chosen : inner;
    }
    const chosen = typeof found === "function" ? found : typeof own === "function" ? own : own && own.default;
    if (typeof chosen !== "function") {
      throw new Unavailable("the file exports no function: write " + example);
    }
    return chosen;
  }

  const isClass = (found) =>
    typeof found === "function" &&
    (/^class\b/.test(Function.prototype.toString.call(found)) || Boolean(found.prototype && found.prototype.callApi));

  const EXAMPLES = {
    "function": "module.exports = (output, context) => ...",
    "tests": "module.exports = () => [{ vars: { ... } }]",
    "provider": "module.exports = class { async callApi(prompt, context) { return { output: ... }; } }",
  };

  // The function that makes tests; a file may also export the tests themselves.
  function maker(source, wanted) {
    const found = exportsOf(source);
    const own = found && found.default !== undefined ? found.default : found;
    return Array.isArray(own) && !wanted ? () => own : loaded(source, wanted, EXAMPLES.tests);
  }

  function instance(source, wanted, options) {
    const found = exportsOf(source);
    const own = found && found.default !== undefined ? found.default : found;
    const chosen = wanted ? found && found[wanted] : own;
    return isClass(chosen) ? new chosen(options) : chosen;
  }

  // How a class or an object names itself; undefined for a function.
  function named(source, wanted, options) {
    const chosen = instance(source, wanted, options);
    return () => (chosen && typeof chosen.callApi === "function" && typeof chosen.id === "function" ? chosen.id() : undefined);
  }

  // What answers: `callApi` of a class, of an object, or the function itself.
  function answerer(source, wanted, options) {
    const chosen = instance(source, wanted, options);
    if (chosen && typeof chosen.callApi === "function") {
      return (...values) => chosen.callApi(...values);
    }
    return typeof chosen === "function" ? chosen : loaded(source, wanted, EXAMPLES.provider);
  }

  function entryOf({ source, values, wanted, entry }) {
    if (entry === "tests") {
      return maker(source, wanted);
    }
    if (entry === "provider-name") {
      return named(source, wanted, values[0]);
    }
    if (entry === "provider") {
      return answerer(source, wanted, values[values.length - 1]);
    }
    return loaded(source, wanted, EXAMPLES["function"]);
  }

  globalThis.check = function (text) {
    const { source, names, isFile } = parse(text);
    try {
      if (isFile) {
        try {
          new Code("module", "exports", exported(source));
        } catch (error) {
          throw Object.assign(new Unavailable(""), { told: described(error, 3, linesOf(source)) });
        }
      } else {
        compiled(names, source);
      }
      tell({ type: "undefined" });
    } catch (error) {
      tell(error.told || described(error, null));
    }
  };

  globalThis.run = function (text) {
    const job = parse(text);
    const { source, names, values, isFile } = job;
    let line = isFile ? 3 : null;
    const fail = (error) => tell((error && error.told) || described(error, line, linesOf(source)));
    try {
      let call;
      if (isFile) {
        call = entryOf(job);
      } else {
        [call, line] = compiled(names, source);
      }
      let result = call(...values);
      if (typeof result === "function" && job.callsResult) {
        result = result(...values);
      }
      Promise.resolve(result).then(deliver).catch(fail);
    } catch (error) {
      fail(error);
    }
  };
})();
