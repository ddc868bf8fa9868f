"""Small audio recordings, made without a library."""

import base64
import struct

MP3 = b"\xff\xfb\x90\x64" + bytes(413)
"""One silent frame of MPEG-1 layer III: 128 kbit/s at 44.1 kHz."""

MP3_WITH_TAGS = b"ID3\x04\x00\x00\x00\x00\x00\x00" + MP3
FLAC = b"fLaC\x80\x00\x00\x22" + bytes(34)
OGG = b"OggS\x00\x02" + bytes(22)


def wav(seconds: float = 0.01, *, level: int = 0, rate: int = 8_000) -> bytes:
    """Return a recording of one level: 16 bits, mono."""
    data = struct.pack("<h", level) * int(rate * seconds)
    header = struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", len(data))
    return b"RIFF" + struct.pack("<I", 4 + len(header) + len(data)) + b"WAVE" + header + data


def audio_url(content: bytes, kind: str = "wav") -> str:
    """Return a recording as a data URL."""
    return f"data:audio/{kind};base64,{base64.b64encode(content).decode()}"
