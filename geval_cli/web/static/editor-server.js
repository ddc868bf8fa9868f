// Requests of the editor: JSON there and back; that the server cannot be reached is an answer too.

export async function send(address, value) {
  try {
    const response = await fetch(address, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(value),
    });
    const isJson = (response.headers.get("content-type") ?? "").includes("json");
    const body = isJson ? await response.json() : { detail: `the server answered ${response.status}` };
    return { ok: response.ok, status: response.status, body };
  } catch {
    return { ok: false, status: 0, body: { detail: "the server cannot be reached", hint: "is `geval view` still running?" } };
  }
}
