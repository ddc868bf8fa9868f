"""A chat API on loopback that answers every request after a fixed time, and is faster than any client.

Run it with `python -m benchmarks.fixed_latency_server LATENCY_S`; it prints its port. `GET /count` returns the number
of requests answered, `GET /first` the time of the first request since the last `GET /first` (Unix time, 0 for none).
Judge requests get a verdict, requests for steps get steps, and all others a sentence.
"""

import asyncio
import json
import sys
import time

_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def _reply(content: str) -> bytes:
    message = {"role": "assistant", "content": content}
    body = json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }
    ).encode()
    return _JSON_HEAD % len(body) + body


STEPS = _reply('{"steps": ["Read the text.", "Compare it with the criteria.", "Rate it."]}')
VERDICT = _reply('{"reason": "It does what it should.", "score": 8}')
ANSWER = _reply("The sea is wide and the sky is blue.")


class FixedLatency(asyncio.Protocol):
    """A minimal HTTP/1.1 server: keep-alive and content-length, no chunked bodies."""

    answered = 0
    first_at = 0.0
    latency_s = 0.05

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 : at + 30].split(b"\r\n")[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            if head.startswith(b"get /count"):
                self.tell(FixedLatency.answered)
            elif head.startswith(b"get /first"):
                self.tell(FixedLatency.first_at)
                FixedLatency.first_at = 0.0
            else:
                FixedLatency.first_at = FixedLatency.first_at or time.time()
                asyncio.get_running_loop().call_later(self.latency_s, self.answer, body)

    def tell(self, number: float) -> None:
        text = str(number).encode()
        self.transport.write(_JSON_HEAD % len(text) + text)

    def answer(self, body: bytes) -> None:
        FixedLatency.answered += 1
        if b'\\"steps\\"' in body:
            reply = STEPS
        elif b'\\"score\\"' in body:
            reply = VERDICT
        else:
            reply = ANSWER
        if not self.transport.is_closing():
            self.transport.write(reply)


async def main(latency_s: float) -> None:
    FixedLatency.latency_s = latency_s
    server = await asyncio.get_running_loop().create_server(FixedLatency, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
