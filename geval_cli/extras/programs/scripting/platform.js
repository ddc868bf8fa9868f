// What browsers and Node add to the language and code of assertions uses: texts as bytes, URLs, copies, numbers and
// dates as people in the United States write them. Loaded only for code that names something of it.
(function () {
  const refuse = globalThis.refuse;
  const define = (owner, members) => {
    for (const [name, value] of Object.entries(members)) {
      Object.defineProperty(owner, name, { value, writable: true, configurable: true, enumerable: false });
    }
  };

  // -- texts as bytes ----------------------------------------------------------------------------------------

  function utf8(text) {
    const bytes = [];
    for (const sign of String(text)) {
      let code = sign.codePointAt(0);
      if (code >= 0xd800 && code <= 0xdfff) code = 0xfffd;
      if (code < 0x80) bytes.push(code);
      else if (code < 0x800) bytes.push(0xc0 | (code >> 6), 0x80 | (code & 63));
      else if (code < 0x10000) bytes.push(0xe0 | (code >> 12), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63));
      else bytes.push(0xf0 | (code >> 18), 0x80 | ((code >> 12) & 63), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63));
    }
    return bytes;
  }

  // The length of the sequence at `at` and its character; a broken one has the longest beginning that could be one.
  function utf8At(bytes, at) {
    const first = bytes[at];
    if (first < 0x80) return [1, first];
    const size = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
    if (!size) return [1, -1];
    let code = first & (0xff >> (size + 1));
    for (let place = 1; place < size; place += 1) {
      const low = place === 1 ? { 0xe0: 0xa0, 0xf0: 0x90 }[first] || 0x80 : 0x80;
      const high = place === 1 ? { 0xed: 0x9f, 0xf4: 0x8f }[first] || 0xbf : 0xbf;
      const byte = bytes[at + place];
      if (!(byte >= low && byte <= high)) return [place, -1];
      code = (code << 6) | (byte & 63);
    }
    return [size, code];
  }

  function fromUtf8(bytes, fatal) {
    const parts = [];
    for (let at = 0; at < bytes.length; ) {
      const [size, code] = utf8At(bytes, at);
      if (code < 0 && fatal) throw new TypeError("The encoded data was not valid for encoding utf-8");
      parts.push(String.fromCodePoint(code < 0 ? 0xfffd : code));
      at += size;
    }
    return parts.join("");
  }

  const bytesOf = (source) =>
    ArrayBuffer.isView(source) ? new Uint8Array(source.buffer, source.byteOffset, source.byteLength) : new Uint8Array(source);

  class TextEncoder {
    get encoding() { return "utf-8"; }
    encode(text = "") { return Uint8Array.from(utf8(text)); }
  }

  class TextDecoder {
    constructor(label = "utf-8", options = {}) {
      if (!/^\s*utf-?8\s*$/i.test(label)) refuse("TextDecoder for " + label);
      this.fatal = Boolean(options.fatal);
      this.ignoreBOM = Boolean(options.ignoreBOM);
    }
    get encoding() { return "utf-8"; }
    decode(source = []) {
      const text = fromUtf8(bytesOf(source), this.fatal);
      return this.ignoreBOM ? text : text.replace(/^\ufeff/, "");
    }
  }

  const latin = (bytes) => Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  const unBase64 = (text) => {
    const clean = text.replace(/-/g, "+").replace(/_/g, "/").replace(/=[\s\S]*$/, "").replace(/[^A-Za-z0-9+/]/g, "");
    return Array.from(atob(clean.length % 4 === 1 ? clean.slice(0, -1) : clean), (sign) => sign.charCodeAt(0));
  };
  const unHex = (text) => {
    const pairs = /^(?:[0-9a-f]{2})*/i.exec(text)[0].match(/../g) || [];
    return pairs.map((pair) => parseInt(pair, 16));
  };
  const units = (text) => Array.from({ length: text.length * 2 }, (_, at) => (text.charCodeAt(at >> 1) >> (at % 2 ? 8 : 0)) & 255);
  const fromUnits = (bytes) => {
    const codes = Array.from({ length: bytes.length >> 1 }, (_, at) => bytes[2 * at] | (bytes[2 * at + 1] << 8));
    return codes.map((code) => String.fromCharCode(code)).join("");
  };
  const narrow = (text) => Array.from({ length: text.length }, (_, at) => text.charCodeAt(at) & 255);
  const base64 = (bytes) => btoa(latin(bytes));
  const ENCODINGS = {
    utf8: [utf8, (bytes) => fromUtf8(bytes, false)],
    hex: [unHex, (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")],
    base64: [unBase64, base64],
    base64url: [unBase64, (bytes) => base64(bytes).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "")],
    latin1: [narrow, latin],
    ascii: [narrow, (bytes) => latin(bytes.map((byte) => byte & 127))],
    utf16le: [units, fromUnits],
  };
  const ALIASES = { "utf-8": "utf8", binary: "latin1", ucs2: "utf16le", "ucs-2": "utf16le", "utf-16le": "utf16le" };
  function encoding(name = "utf8") {
    const key = String(name).toLowerCase();
    const found = ENCODINGS[ALIASES[key] || key];
    if (!found) throw new TypeError("Unknown encoding: " + name);
    return found;
  }

  class Buffer extends Uint8Array {
    static from(source, name) {
      if (typeof source === "string") return Buffer.from(encoding(name)[0](source));
      const bytes = source instanceof ArrayBuffer ? new Uint8Array(source) : source && source.type === "Buffer" ? source.data : source;
      if (bytes === null || typeof bytes !== "object") throw new TypeError("Buffer.from takes a text, a list or bytes");
      const made = new Buffer(bytes.length);
      made.set(Array.from(bytes, (byte) => byte & 255));
      return made;
    }
    static alloc(size, fill = 0) {
      const made = new Buffer(size);
      const pattern = typeof fill === "string" ? utf8(fill) : [fill & 255];
      return made.map((_, at) => (pattern.length ? pattern[at % pattern.length] : 0));
    }
    static concat(list, length) {
      const all = Buffer.from([].concat(...list.map((item) => Array.from(item))));
      return length === undefined ? all : Buffer.from(Array.from({ length }, (_, at) => all[at] || 0));
    }
    static isBuffer(value) { return value instanceof Buffer; }
    static isEncoding(name) { return String(name).toLowerCase() in { ...ENCODINGS, ...ALIASES }; }
    static byteLength(value, name) { return typeof value === "string" ? encoding(name)[0](value).length : value.byteLength; }
    static compare(left, right) {
      const at = Array.from(left).findIndex((byte, place) => byte !== right[place]);
      return at < 0 ? Math.sign(left.length - right.length) : right[at] === undefined || left[at] > right[at] ? 1 : -1;
    }
    toString(name, start = 0, end = this.length) { return encoding(name)[1](Uint8Array.prototype.slice.call(this, Math.max(0, start), end)); }
    toJSON() { return { type: "Buffer", data: Array.from(this) }; }
    equals(other) { return Buffer.compare(this, other) === 0; }
    compare(other) { return Buffer.compare(this, other); }
    slice(start, end) { return this.subarray(start, end); }
    indexOf(value, start = 0) {
      if (typeof value === "number") return super.indexOf(value & 255, start);
      const at = latin(this).indexOf(latin(typeof value === "string" ? utf8(value) : value), start);
      return at;
    }
    includes(value, start) { return this.indexOf(value, start) >= 0; }
  }

  // -- copies ------------------------------------------------------------------------------------------------

  function structuredClone(value) {
    const seen = new Map();
    const copied = (item) => {
      if (typeof item === "function" || typeof item === "symbol") {
        throw Object.assign(new Error(String(item) + " could not be cloned."), { name: "DataCloneError" });
      }
      if (item === null || typeof item !== "object") return item;
      if (seen.has(item)) return seen.get(item);
      const keep = (made) => (seen.set(item, made), made);
      if (item instanceof Date) return keep(new Date(item.getTime()));
      if (item instanceof RegExp) return keep(new RegExp(item.source, item.flags));
      if (item instanceof ArrayBuffer) return keep(item.slice(0));
      if (ArrayBuffer.isView(item)) return keep(item instanceof Buffer ? new Uint8Array(item) : item.slice());
      if (item instanceof Map) {
        const made = keep(new Map());
        item.forEach((entry, key) => made.set(copied(key), copied(entry)));
        return made;
      }
      if (item instanceof Set) {
        const made = keep(new Set());
        item.forEach((entry) => made.add(copied(entry)));
        return made;
      }
      if (item instanceof Error) {
        const kind = { EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError }[item.name] || Error;
        return keep(new kind(item.message));
      }
      const made = keep(Array.isArray(item) ? new Array(item.length) : {});
      for (const key of Object.keys(item)) made[key] = copied(item[key]);
      return made;
    };
    return copied(value);
  }

  // -- URLs --------------------------------------------------------------------------------------------------

  const percent = (bytes) => bytes.map((byte) => "%" + byte.toString(16).toUpperCase().padStart(2, "0")).join("");
  const escaped = (text, unsafe) =>
    Array.from(text, (sign) => (sign > "~" || sign < "!" || unsafe.includes(sign) ? percent(utf8(sign)) : sign)).join("");
  const unescaped = (text) => {
    const bytes = [];
    for (const part of text.match(/%[0-9a-f]{2}|[^%]+|%/gi) || []) {
      bytes.push(...(/^%../.test(part) ? [parseInt(part.slice(1), 16)] : utf8(part)));
    }
    return fromUtf8(bytes, false);
  };
  const formEscaped = (text) => encodeURIComponent(text.toWellFormed ? text.toWellFormed() : text)
    .replace(/%20/g, "+").replace(/[!'()~]/g, (sign) => percent(utf8(sign)));

  class URLSearchParams {
    #pairs = [];
    #changed = () => {};
    constructor(source = "", changed) {
      if (changed) this.#changed = changed;
      if (source && typeof source === "object") {
        const pairs = source[Symbol.iterator] ? Array.from(source) : Object.entries(source);
        this.#pairs = pairs.map(([key, value]) => [String(key), String(value)]);
      } else {
        const parts = String(source).replace(/^\?/, "").split("&").filter((part) => part);
        this.#pairs = parts.map((part) => {
          const [, key, value] = /^([^=]*)=?([\s\S]*)$/.exec(part.replace(/\+/g, " "));
          return [unescaped(key), unescaped(value)];
        });
      }
    }
    #set(pairs) { this.#pairs = pairs; this.#changed(this.toString()); }
    get size() { return this.#pairs.length; }
    append(key, value) { this.#set([...this.#pairs, [String(key), String(value)]]); }
    delete(key, value) { this.#set(this.#pairs.filter(([name, own]) => name !== String(key) || (value !== undefined && own !== String(value)))); }
    get(key) { const found = this.#pairs.find(([name]) => name === String(key)); return found ? found[1] : null; }
    getAll(key) { return this.#pairs.filter(([name]) => name === String(key)).map(([, value]) => value); }
    has(key, value) { return this.#pairs.some(([name, own]) => name === String(key) && (value === undefined || own === String(value))); }
    set(key, value) {
      const at = this.#pairs.findIndex(([name]) => name === String(key));
      if (at < 0) return this.append(key, value);
      this.#set(this.#pairs.filter(([name], place) => place <= at || name !== String(key)).map((pair, place) => (place === at ? [pair[0], String(value)] : pair)));
    }
    sort() { this.#set([...this.#pairs].sort(([left], [right]) => (left < right ? -1 : left > right ? 1 : 0))); }
    forEach(call, self) { this.#pairs.forEach(([key, value]) => call.call(self, value, key, this)); }
    *entries() { yield* this.#pairs.map((pair) => [...pair]); }
    *keys() { yield* this.#pairs.map(([key]) => key); }
    *values() { yield* this.#pairs.map(([, value]) => value); }
    [Symbol.iterator]() { return this.entries(); }
    toString() { return this.#pairs.map(([key, value]) => formEscaped(key) + "=" + formEscaped(value)).join("&"); }
  }

  const PORTS = { "http:": "80", "https:": "443", "ws:": "80", "wss:": "443", "ftp:": "21", "file:": "" };
  const invalid = (text) => Object.assign(new TypeError("Invalid URL"), { code: "ERR_INVALID_URL", input: text });

  function hostOf(text, input) {
    const host = unescaped(text).toLowerCase();
    if (/[^\0-\x7f]/.test(host)) refuse("URL for host names beyond ASCII");
    const isV6 = /^\[[0-9a-f:.]+\]$/.test(host);
    if (isV6 && host !== "[::1]" && host !== "[::]") refuse("URL for IPv6 addresses");
    const parts = host.replace(/\.$/, "").split(".");
    if (/^(?:\d+|0x[0-9a-f]*)$/.test(parts[parts.length - 1])) {
      const isPlain = parts.length === 4 && parts.every((part) => /^(?:0|[1-9]\d{0,2})$/.test(part) && Number(part) < 256);
      if (!isPlain) throw invalid(input);
      return parts.join(".");
    }
    if (!isV6 && (!host || /[\0-\x20#%/:<>?@[\\\]^|\x7f]/.test(host))) throw invalid(input);
    return host;
  }

  function pathOf(text, isSpecial) {
    const parts = (isSpecial ? text.replace(/\\/g, "/") : text).split("/").slice(1);
    const found = [];
    parts.forEach((part, at) => {
      const name = part.replace(/%2e/gi, ".");
      const isLast = at === parts.length - 1;
      if (name === "..") found.pop();
      if (name !== "." && name !== "..") found.push(escaped(part, "\"#<>?`{}^"));
      else if (isLast) found.push("");
    });
    return "/" + found.join("/");
  }

  function parsed(input, base) {
    const text = String(input).replace(/^[\0-\x20]+|[\0-\x20]+$/g, "").replace(/[\t\n\r]/g, "");
    const [, before, hash] = /^([^#]*)(#[\s\S]*)?$/.exec(text);
    const made = { hash: hash && hash.length > 1 ? "#" + escaped(hash.slice(1), "\"<>`") : "", username: "", password: "", port: "" };
    const scheme = /^([a-z][a-z0-9+.-]*:)([\s\S]*)$/i.exec(before);
    const protocol = scheme ? scheme[1].toLowerCase() : base && base.protocol;
    if (!protocol) throw invalid(input);
    const isSpecial = protocol in PORTS;
    let rest = scheme ? scheme[2] : before;
    let search = null;
    const asks = rest.indexOf("?");
    if (asks >= 0) [rest, search] = [rest.slice(0, asks), rest.slice(asks + 1)];
    made.protocol = protocol;
    [made.asks, made.marks] = [search === "" ? "?" : "", hash === "#" ? "#" : ""];
    made.search = search ? "?" + escaped(search, isSpecial ? "\"#<>'" : "\"#<>") : "";
    if (isSpecial) rest = rest.replace(/\\/g, "/");
    const isRelative = !scheme || (isSpecial && base && base.protocol === protocol && !rest.startsWith("/"));
    if (!isRelative && !isSpecial && !rest.startsWith("//")) {
      made.host = made.hostname = "";
      made.pathname = rest.startsWith("/") ? pathOf(rest, false) : Array.from(rest, (sign) => (sign > "~" || sign < " " ? percent(utf8(sign)) : sign)).join("");
      made.isBare = true;
      return made;
    }
    if (isRelative && !rest.startsWith("//")) {
      if (!base || (base.isBare && rest)) throw invalid(input);
      const { username, password, host, hostname, port, isBare } = base;
      Object.assign(made, { username, password, host, hostname, port, isBare });
      if (rest) made.pathname = pathOf(rest.startsWith("/") ? rest : base.pathname.replace(/[^/]*$/, "") + rest, isSpecial);
      else Object.assign(made, { pathname: base.pathname, search: search === null ? base.search : made.search });
      return made;
    }
    const [, authority, path] = /^([^/]*)([\s\S]*)$/.exec(rest.replace(isSpecial && protocol !== "file:" ? /^\/*/ : /^\/\//, ""));
    const [, user, place] = /^(?:([\s\S]*)@)?([^@]*)$/.exec(authority);
    const [, host, port] = /^(\[[^\]]*\]|[^:]*)(?::(\d*))?$/.exec(place) || [];
    if (host === undefined || Number(port) > 65535) throw invalid(input);
    if (user !== undefined) {
      const [, name, secret] = /^([^:]*):?([\s\S]*)$/.exec(user);
      made.username = escaped(name, "\"#<>?`{}/:;=@[\\]^|");
      made.password = escaped(secret, "\"#<>?`{}/:;=@[\\]^|");
    }
    made.hostname = protocol === "file:" && (!host || host === "localhost") ? "" : isSpecial ? hostOf(host, input) : host;
    made.port = !port || String(Number(port)) === PORTS[protocol] ? "" : String(Number(port));
    made.host = made.hostname + (made.port && ":" + made.port);
    made.pathname = path || isSpecial ? pathOf(path || "/", isSpecial) : "";
    return made;
  }

  class URL {
    #parts;
    #query;
    constructor(input, base) {
      this.#parts = parsed(input, base === undefined ? undefined : parsed(base));
    }
    static canParse(input, base) {
      try { return Boolean(new URL(input, base)); } catch (error) { if (error instanceof TypeError) return false; throw error; }
    }
    get protocol() { return this.#parts.protocol; }
    get username() { return this.#parts.username; }
    get password() { return this.#parts.password; }
    get host() { return this.#parts.host; }
    get hostname() { return this.#parts.hostname; }
    get port() { return this.#parts.port; }
    get pathname() { return this.#parts.pathname; }
    get search() { return this.#parts.search; }
    get hash() { return this.#parts.hash; }
    get origin() { return this.protocol in PORTS && this.protocol !== "file:" ? this.protocol + "//" + this.host : "null"; }
    get searchParams() {
      const keep = (text) => Object.assign(this.#parts, { search: text && "?" + text, asks: "" });
      return (this.#query = this.#query || new URLSearchParams(this.search, keep));
    }
    get href() {
      const { protocol, username, password, host, pathname, search, hash, asks, marks, isBare } = this.#parts;
      const user = username || password ? username + (password && ":" + password) + "@" : "";
      return protocol + (isBare ? "" : "//" + user + host) + pathname + (search || asks) + (hash || marks);
    }
    set href(text) { this.#parts = parsed(text); this.#query = undefined; }
    set protocol(text) { this.#again({ protocol: String(text).replace(/:.*$/, "") + ":" }); }
    set hostname(text) { this.#again({ host: String(text) + (this.port && ":" + this.port) }); }
    set host(text) { this.#again({ host: String(text) }); }
    set port(text) { this.#again({ host: this.hostname + (text === "" ? "" : ":" + text) }); }
    set pathname(text) { this.#again({ pathname: "/" + String(text).replace(/^\//, "").replace(/[?#]/g, encodeURIComponent) }); }
    set search(text) { this.#query = undefined; this.#again({ search: text && "?" + String(text).replace(/^\?/, "").replace(/#/g, "%23") }); }
    set hash(text) { this.#again({ hash: text && "#" + String(text).replace(/^#/, "") }); }
    #again(changes) {
      const { protocol, username, password, host, pathname, search, hash } = { ...this.#parts, ...changes };
      const user = username || password ? username + (password && ":" + password) + "@" : "";
      this.#parts = parsed(protocol + (this.#parts.isBare ? "" : "//" + user + host) + pathname + search + hash);
    }
    toString() { return this.href; }
    toJSON() { return this.href; }
  }

  // -- numbers, dates and the order of texts, as in the United States --------------------------------------------

  function american(locales) {
    const wanted = locales === undefined ? "en-US" : Array.isArray(locales) ? locales[0] || "en-US" : locales;
    if (!/^en(?:-US)?$/i.test(wanted)) refuse("the locale " + wanted);
  }
  function only(options, names, what) {
    const other = Object.keys(options).find((name) => options[name] !== undefined && !names.includes(name));
    if (other) refuse(what + " with `" + other + "`");
    return options;
  }

  // A number in at most so many places; halves of what is written go away from zero.
  function placed(number, least, most) {
    const [digits, exponent] = Math.abs(number).toExponential().split("e");
    const significant = digits.replace(".", "");
    const point = Number(exponent) + 1;
    const whole = point > 0 ? significant.padEnd(point, "0").slice(0, point) : "0";
    const fraction = point > 0 ? significant.slice(point) : "0".repeat(-point) + significant;
    let all = BigInt(whole + fraction.slice(0, most).padEnd(most, "0"));
    if (fraction[most] >= "5") all += 1n;
    const text = all.toString().padStart(most + 1, "0");
    const shown = text.slice(text.length - most).replace(/0+$/, "").padEnd(least, "0");
    return [text.slice(0, text.length - most), most ? shown : ""];
  }

  const SYMBOLS = { USD: "$", EUR: "€", GBP: "£", JPY: "¥", INR: "₹", CNY: "CN¥", KRW: "₩", CAD: "CA$", AUD: "A$", BRL: "R$", MXN: "MX$" };
  const NUMBER_OPTIONS = ["style", "currency", "minimumFractionDigits", "maximumFractionDigits", "useGrouping", "minimumIntegerDigits"];
  function numberText(value, locales, given = {}) {
    american(locales);
    const options = only(given, NUMBER_OPTIONS, "toLocaleString");
    const { style = "decimal", currency } = options;
    if (!["decimal", "percent", "currency"].includes(style)) refuse("toLocaleString with the style " + style);
    if (style === "currency" && !currency) throw new TypeError("Currency code is required with currency style.");
    const code = String(currency).toUpperCase();
    const usual = style === "currency" ? (["JPY", "KRW"].includes(code) ? [0, 0] : [2, 2]) : style === "percent" ? [0, 0] : [0, 3];
    const most = options.maximumFractionDigits ?? Math.max(usual[1], options.minimumFractionDigits ?? 0);
    const least = options.minimumFractionDigits ?? Math.min(usual[0], most);
    if (!(least >= 0 && most <= 100 && least <= most)) throw new RangeError("maximumFractionDigits value is out of range.");
    const number = typeof value === "bigint" ? value : Number(value) * (style === "percent" ? 100 : 1);
    const isNegative = number < 0 || Object.is(number, -0);
    let text;
    if (typeof number === "number" && !Number.isFinite(number)) {
      text = Number.isNaN(number) ? "NaN" : "∞";
    } else {
      const [whole, fraction] = typeof number === "bigint" ? [String(number).replace("-", ""), "0".repeat(least)]
        : placed(style === "percent" ? Number((Number(value) * 100).toPrecision(15)) : number, least, most);
      const long = whole.padStart(options.minimumIntegerDigits || 1, "0");
      const grouped = options.useGrouping === false ? long : long.replace(/\B(?=(?:\d{3})+$)/g, ",");
      text = grouped + (fraction && "." + fraction);
    }
    const symbol = style === "currency" ? SYMBOLS[code] || code + "\u00a0" : "";
    return (isNegative ? "-" : "") + symbol + text + (style === "percent" ? "%" : "");
  }

  const MONTHS = "January February March April May June July August September October November December".split(" ");
  const DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split(" ");
  const DATE_STYLES = {
    full: { weekday: "long", month: "long", day: "numeric", year: "numeric" },
    long: { month: "long", day: "numeric", year: "numeric" },
    medium: { month: "short", day: "numeric", year: "numeric" },
    short: { month: "numeric", day: "numeric", year: "2-digit" },
  };
  const TIME_STYLES = { medium: { hour: "numeric", minute: "2-digit", second: "2-digit" }, short: { hour: "numeric", minute: "2-digit" } };
  const DATE_FIELDS = ["weekday", "year", "month", "day"];
  const TIME_FIELDS = ["hour", "minute", "second"];
  const two = (number) => String(number).padStart(2, "0");

  function dateText(date, locales, given = {}, usual = [true, true]) {
    american(locales);
    const options = { ...only(given, [...DATE_FIELDS, ...TIME_FIELDS, "dateStyle", "timeStyle", "timeZone", "hour12"], "dates") };
    if (Number.isNaN(date.getTime())) return "Invalid Date";
    if (options.timeZone !== undefined && !/^(?:UTC|GMT|Etc\/UTC)$/i.test(options.timeZone)) refuse("the time zone " + options.timeZone);
    const utc = options.timeZone === undefined ? "" : "UTC";
    const of = (part) => date["get" + utc + part]();
    const { dateStyle, timeStyle } = options;
    if (timeStyle && !TIME_STYLES[timeStyle]) refuse("dates with the timeStyle " + timeStyle);
    Object.assign(options, dateStyle && DATE_STYLES[dateStyle], timeStyle && TIME_STYLES[timeStyle]);
    const asked = [...DATE_FIELDS, ...TIME_FIELDS].some((name) => options[name] !== undefined);
    const hasDate = DATE_FIELDS.some((name) => options[name] !== undefined);
    const hasTime = TIME_FIELDS.some((name) => options[name] !== undefined);
    if (!asked || (usual[0] && !usual[1] && !hasDate)) {
      if (usual[0]) Object.assign(options, { year: "numeric", month: "numeric", day: "numeric" });
    }
    if (!asked || (usual[1] && !usual[0] && !hasTime)) {
      if (usual[1]) Object.assign(options, TIME_STYLES.medium);
    }
    return [dayText(options, of), clockText(options, of)].filter((text) => text)
      .join(dateStyle === "full" || dateStyle === "long" || (!dateStyle && options.month === "long") ? " at " : ", ");
  }

  function dayText({ weekday, year, month, day }, of) {
    const shown = (name, width) => (width === "short" ? name.slice(0, 3) : width === "narrow" ? name[0] : name);
    const years = year && (year === "2-digit" ? two(of("FullYear") % 100) : String(of("FullYear")));
    const days = day && (day === "2-digit" ? two(of("Date")) : String(of("Date")));
    const name = weekday && shown(DAYS[of("Day")], weekday);
    if (["long", "short", "narrow"].includes(month)) {
      const start = [shown(MONTHS[of("Month")], month), days].filter((text) => text).join(" ");
      const whole = years ? start + (days ? ", " : " ") + years : start;
      return [name, whole].filter((text) => text).join(day ? ", " : " ");
    }
    const months = month && (month === "2-digit" ? two(of("Month") + 1) : String(of("Month") + 1));
    const numbers = [months, days, years].filter((text) => text).join("/");
    if (name && days && !months) return [days, name].join(" ");
    return [name, numbers].filter((text) => text).join(", ");
  }

  function clockText({ hour, minute, second, hour12 }, of) {
    const is24 = hour12 === false;
    const hours = of("Hours");
    const parts = [];
    if (hour) {
      const shown = is24 ? hours || 24 : hours % 12 || 12;
      parts.push(hour === "2-digit" || is24 ? two(shown) : String(shown));
    }
    if (minute) parts.push(hour || second ? two(of("Minutes")) : String(of("Minutes")));
    if (second) parts.push(minute ? two(of("Seconds")) : String(of("Seconds")));
    return parts.join(":") + (hour && !is24 ? " " + (hours < 12 ? "AM" : "PM") : "");
  }

  // Letters by their base first, then by their marks, then small before large; signs before digits before letters.
  const bare = (text) => text.normalize("NFD").replace(/[\u0300-\u036f]/g, "");
  const classOf = (sign) => (/\p{L}/u.test(sign) ? 3 : /\p{N}/u.test(sign) ? 2 : /\s/.test(sign) ? 0 : 1);
  function ordered(left, right, levels) {
    const pairs = (kind) => [Array.from(kind(left)), Array.from(kind(right))];
    const [first, second] = pairs((text) => bare(text).toLowerCase());
    for (let at = 0; at < Math.max(first.length, second.length); at += 1) {
      const [one, other] = [first[at], second[at]];
      if (one === undefined || other === undefined) return one === undefined ? -1 : 1;
      if (one !== other) return classOf(one) - classOf(other) || (one < other ? -1 : 1);
    }
    const [marked, unmarked] = [left, right].map((text) => text.normalize("NFD").toLowerCase());
    if (levels > 1 && marked !== unmarked) return marked < unmarked ? -1 : 1;
    const [small, large] = [left, right].map((text) => text.normalize("NFD"));
    return levels > 2 && small !== large ? (small > large ? -1 : 1) : 0;
  }
  const LEVELS = { base: 1, accent: 2, variant: 3 };
  function compared(left, right, locales, given = {}) {
    american(locales);
    const options = only(given, ["sensitivity", "numeric", "usage"], "localeCompare");
    const levels = LEVELS[options.sensitivity || "variant"] || refuse("localeCompare with that sensitivity");
    if (!options.numeric) return Math.sign(ordered(left, right, levels));
    const pieces = [left, right].map((text) => text.match(/\d+|\D+/g) || []);
    for (let at = 0; at < Math.max(pieces[0].length, pieces[1].length); at += 1) {
      const [one = "", other = ""] = [pieces[0][at], pieces[1][at]];
      const both = /^\d/.test(one) && /^\d/.test(other);
      const order = both ? Number(one) - Number(other) : ordered(one, other, levels);
      if (order) return Math.sign(order);
    }
    return 0;
  }

  // They are called with and without `new`.
  function NumberFormat(locales, options) {
    numberText(0, locales, options);
    return { format: (value) => numberText(value, locales, options) };
  }
  function DateTimeFormat(locales, options) {
    dateText(new Date(0), locales, options, [true, false]);
    return {
      format: (date = new Date()) => dateText(new Date(date), locales, options, [true, false]),
      resolvedOptions: () => refuse("Intl.DateTimeFormat.resolvedOptions"),
    };
  }
  function Collator(locales, options) {
    compared("", "", locales, options);
    return { compare: (left, right) => compared(String(left), String(right), locales, options) };
  }

  const known = { NumberFormat, DateTimeFormat, Collator };
  const Intl = new Proxy(known, {
    get: (owner, name) => (name in owner || typeof name === "symbol" ? owner[name] : refuse("Intl." + name)),
  });
  define(globalThis, { Buffer, Intl, TextDecoder, TextEncoder, URL, URLSearchParams, structuredClone });
  define(String.prototype, { localeCompare(other, locales, options) { return compared(String(this), String(other), locales, options); } });
  define(Number.prototype, { toLocaleString(locales, options) { return numberText(Number(this), locales, options); } });
  define(BigInt.prototype, { toLocaleString(locales, options) { return numberText(BigInt(this), locales, options); } });
  define(Date.prototype, {
    toLocaleString(locales, options) { return dateText(this, locales, options, [true, true]); },
    toLocaleDateString(locales, options) { return dateText(this, locales, options, [true, false]); },
    toLocaleTimeString(locales, options) { return dateText(this, locales, options, [false, true]); },
  });
  delete globalThis.refuse;
})();
