// Requests of pages: JSON there and back; that the server cannot be reached is an answer too.

/** What a page has for an answer where nobody answers. */
export const UNREACHED = { detail: "the server cannot be reached", hint: "is `geval view` still running?" };

export async function send(address, value, method = "POST") {
  try {
    const response = await fetch(address, {
      method,
      headers: { "content-type": "application/json" },
      body: JSON.stringify(value),
    });
    const isJson = (response.headers.get("content-type") ?? "").includes("json");
    const body = isJson ? await response.json() : { detail: `the server answered ${response.status}` };
    return { ok: response.ok, status: response.status, body };
  } catch {
    return { ok: false, status: 0, body: UNREACHED };
  }
}

/** A refusal as one sentence, with its first reasons and its hint. */
export function sentence(body) {
  const reasons = (body.errors ?? []).map((error) => error.detail).slice(0, 3);
  return [body.detail, ...reasons].join(": ") + (body.hint ? ` (${body.hint})` : "");
}
