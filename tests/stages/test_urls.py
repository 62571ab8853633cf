"""Pages by their address."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stages.document import document_batch
from stages.urls import Address, Urls, ascii_host, parse_url

DOMAINS = """\
# a comment
example.com     # behind an entry
bücher.de
||tracker.net^
0.0.0.0 ads.example
*.wild.org
https://good.com/bad/
good.com/worse
例え.jp
192.0.2.7
!another comment
"""


@pytest.fixture
def lists(tmp_path: Path):
    def write(**contents: str) -> Urls:
        paths = {}
        for name, content in contents.items():
            paths[name] = str(tmp_path / f"{name}.txt")
            Path(paths[name]).write_text(content, encoding="utf-8")
        return Urls(**paths)

    return write


def verdicts(stage: Urls, *urls: str | None) -> list[str | None]:
    metas = [None if url is None else json.dumps({"url": url}, ensure_ascii=False) for url in urls]
    batch = document_batch("web", ["a"] * len(urls), list(range(len(urls))), ["x"] * len(urls), metas=metas)
    return stage.apply(batch).column("drop").to_pylist()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/", "urls.domain"),
        ("HTTPS://www.a.EXAMPLE.COM.:8080/x?y#z", "urls.domain"),
        ("http://user:pass@example.com", "urls.domain"),
        ("//example.com?x", "urls.domain"),
        ("example.com/path", "urls.domain"),
        ("http://notexample.com/", None),
        ("http://example.com.evil.net/", None),
        ("http://evil.net/example.com", None),
        ("http://xn--bcher-kva.de/", "urls.domain"),
        ("http://shop.BÜCHER.de/", "urls.domain"),
        ("http://xn--r8jz45g.jp/", "urls.domain"),
        ("http://例え。jp/", "urls.domain"),
        ("http://a.tracker.net/", "urls.domain"),
        ("http://ads.example/", "urls.domain"),
        ("http://a.wild.org/", "urls.domain"),
        ("http://192.0.2.7:80/x", "urls.domain"),
        ("http://good.com/", None),
        ("http://good.com/bad/x", "urls.path"),
        ("http://www.good.com/bad/", "urls.path"),
        ("http://good.com/badly", None),
        ("http://good.com/worse", "urls.path"),
        ("http://good.com/worse?x=1", "urls.path"),
        ("http://good.com/worse/still", "urls.path"),
        ("http://good.com/worsen", None),
        ("", None),
        (None, None),
    ],
)
def test_domains_and_addresses(lists, url, reason):
    assert verdicts(lists(block=DOMAINS), url) == [reason]


def test_what_is_allowed_stays(lists):
    stage = lists(block="example.com\n", allow="ok.example.com\nexample.com/about\n", words="secret\n")
    urls = ("http://ok.example.com/secret", "http://example.com/about/us", "http://example.com/", "http://x.com/secret")
    assert verdicts(stage, *urls) == [None, None, "urls.domain", "urls.word"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://n.com/casino-online", "urls.word"),
        ("http://CASINO.com/", "urls.word"),
        ("http://n.com/occasino", None),
        ("http://n.com/casino24", "urls.word"),
        ("http://n.com/%E8%B5%8C%E5%9C%BA.html", "urls.word"),
        ("http://网络赌场.com/", "urls.word"),
        ("http://xn--xhqo56mx5ovp5b.com/", None),
        ("http://n.com/poker77", "urls.pattern"),
        ("http://n.com/POKER7x", "urls.pattern"),
        ("http://n.com/poker", None),
    ],
)
def test_words_and_patterns(lists, url, reason):
    assert verdicts(lists(words="Casino\n赌场\n/poker\\d+/\n"), url) == [reason]


def test_international_names_are_read_in_their_own_script(lists):
    host = ascii_host("网络赌场.com")
    assert host.startswith("xn--")
    assert verdicts(lists(words="赌场\n"), f"http://{host}/") == ["urls.word"]


def test_several_words_can_be_asked_for(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("adult\nvideo\n", encoding="utf-8")
    stage = Urls(words=str(path), least_words=2)
    assert verdicts(stage, "http://x.com/adult-education", "http://x.com/adult/video") == [None, "urls.word"]


def test_the_value_says_what_matched(lists):
    stage = lists(block="example.com\n", words="bad\nworse\n")
    metas = [json.dumps({"url": url}) for url in ("http://a.example.com/", "http://x.com/bad/worse")]
    after = stage.apply(document_batch("web", ["a"] * 2, [0, 1], ["x"] * 2, metas=metas))
    assert after.column("drop_value").to_pylist() == ["a.example.com: example.com is listed", "bad, worse"]
    assert after.column("host").to_pylist() == ["a.example.com", "x.com"]


def test_parts_of_an_address():
    assert parse_url("https://u:p@Example.COM:443/a/b?c=d#e") == Address("example.com", "/a/b?c=d")
    assert parse_url("http://[2001:db8::1]:80/x") == Address("[2001:db8::1]", "/x")
    assert parse_url("http://" + "a" * 70 + "ü.com/").host.endswith("ü.com")  # no label may be so long


def test_lists_are_read_again_when_they_change(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a.com\n", encoding="utf-8")
    stage = Urls(block=str(path))
    before = stage.recipe()
    assert verdicts(stage, "http://a.com", "http://bb.com") == ["urls.domain", None]
    path.write_text("bb.com\n", encoding="utf-8")
    assert verdicts(stage, "http://a.com", "http://bb.com") == [None, "urls.domain"]
    assert stage.recipe() != before


def test_many_lists_and_compressed_ones(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress("\ufeffa.com\r\n".encode()))
    (tmp_path / "b").write_text("\n".join(f"b{n}.com" for n in range(100_000)), encoding="utf-8")
    stage = Urls(block=[str(tmp_path / "a.gz"), str(tmp_path / "b")])
    assert stage.problems() == []
    assert verdicts(stage, "http://a.com", "http://b99999.com", "http://c.com") == ["urls.domain", "urls.domain", None]


def test_what_is_wrong_with_lists_is_said(tmp_path):
    assert "neither" in Urls().problems()[0]
    assert "cannot be read" in Urls(block=str(tmp_path / "none.txt")).problems()[0]
    for name, content, said in (
        ("empty", b"# nothing\n\n", "no entries"),
        ("latin", b"b\xfccher.de\n", "cannot be read"),
        ("cut.gz", gzip.compress(b"a.com\n" * 99)[:-9], "cannot be read"),
        ("words", b"fine\n/(unclosed/\n", "words:2: not a regular expression"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        (problem,) = Urls(words=str(path)).problems()
        assert said in problem
