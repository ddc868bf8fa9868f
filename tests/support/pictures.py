"""Small real images, made without a library."""

import base64
import struct
import zlib

RED, BLUE = (255, 0, 0), (0, 0, 255)
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00\xff\xd9"
GIF = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x01\x00\x00\x00\x00"
    b",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
)
WEBP = b"RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00/\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00"


def png(colour: tuple[int, int, int] = RED, *, size: int = 2, padding: int = 0) -> bytes:
    """Return a square of one colour; `padding` bytes of text make the file larger."""
    rows = b"".join(b"\0" + bytes(colour) * size for _ in range(size))
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), *([(b"tEXt", b"x" * padding)] if padding else [])]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in [*chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    )


def data_url(content: bytes, kind: str = "png") -> str:
    """Return an image as a data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
