"""Web archives made by hand: records, HTTP responses, files."""

from __future__ import annotations

import gzip
from pathlib import Path

import zstandard

PAGE = "<html><head><title>一</title></head><body><p>桥面不宽，刚好能让一辆牛车通过。</p></body></html>"


def record(body: bytes, kind: str = "response", length: int | None = None, end: str = "\r\n", **fields: str) -> bytes:
    """One WARC record; `length` is what it states, `fields` are further header fields (`_` for `-`)."""
    given = {"Target-URI": "http://example.com/", "Date": "2024-06-01T12:00:00Z", "Record-ID": "<urn:uuid:1>", **fields}
    if kind == "response":
        given.setdefault("Content_Type", "application/http; msgtype=response")
    lines = ["WARC/1.0", f"WARC-Type: {kind}"]
    lines += [f"{name.replace('_', '-') if '_' in name else 'WARC-' + name}: {value}" for name, value in given.items()]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return (end.join(lines) + end * 2).encode() + body + (end * 2).encode()


def http(body: bytes | str, content_type: str = "text/html", status: str = "200 OK", **fields: str) -> bytes:
    """A response; `fields` are further header fields (`_` for `-`)."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}"] if content_type else [f"HTTP/1.1 {status}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def chunked(*chunks: bytes, sizes: tuple[int, ...] = (), last: bool = True) -> bytes:
    """A chunked body; `sizes` are what the chunks state, as far as they are given."""
    stated = [*sizes, *map(len, chunks[len(sizes) :])]
    body = b"".join(b"%x\r\n%b\r\n" % (size, chunk) for size, chunk in zip(stated, chunks, strict=True))
    return body + (b"0\r\n\r\n" if last else b"")


def write(path: Path, *records: bytes) -> Path:
    """The records as plain WARC, a gzip member each (.gz) or a zstd frame each (.zst)."""
    if path.suffix == ".gz":
        path.write_bytes(b"".join(map(gzip.compress, records)))
    elif path.suffix == ".zst":
        path.write_bytes(b"".join(map(zstandard.ZstdCompressor().compress, records)))
    else:
        path.write_bytes(b"".join(records))
    return path
