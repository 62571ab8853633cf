"""Encodings: what is stated, what the bytes say, and what statistics say."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest

from stages.readers.charset import codec_of, decode, label_of_header, labels_of_page
from tests.stages.readers.reading import read

ZH = "村口那座石桥是用青石砌成的，桥面不宽，刚好能让一辆牛车通过。每年夏天涨水的时候，水位会漫到第三级台阶。"
TW = "村口那座石橋是用青石砌成的，橋面不寬，剛好能讓一輛牛車通過。每年夏天漲水的時候，水位會漫到第三級台階。"
JA = "村の入り口にある石橋は青い石で造られていて、幅は狭く、牛車が一台やっと通れるほどである。カタカナもある。"
KO = "마을 어귀의 돌다리는 푸른 돌로 지어졌고, 폭이 좁아서 소달구지 한 대가 겨우 지나갈 수 있을 만큼이다."
RU = "Каменный мост у въезда в деревню сложен из серого камня; он узкий, по нему может проехать только одна телега."
UK = "Кам'яний міст біля в'їзду в село складений із сірого каменю; він вузький, і їхати ним може лише один віз."
EL = "Η πέτρινη γέφυρα στην είσοδο του χωριού είναι στενή και χωρά μόλις να περάσει ένα κάρο. Άλλοτε ήταν ξύλινη."
PL = "Kamienny most przy wjeździe do wsi jest wąski, mieści się na nim ledwie jedna furmanka; każdego lata woda sięga stopni."
TR = "Köyün girişindeki taş köprü dardır, üzerinden ancak bir kağnı geçebilir; her yaz su üçüncü basamağa kadar yükselir."
AR = "الجسر الحجري عند مدخل القرية ضيق، ولا يتسع إلا لعربة واحدة، وفي كل صيف يصل الماء إلى الدرجة الثالثة."
HE = "גשר האבן בכניסה לכפר צר, ורק עגלה אחת יכולה לעבור בו; בכל קיץ מגיעים המים עד למדרגה השלישית."
TH = "สะพานหินที่ทางเข้าหมู่บ้านแคบมาก เกวียนผ่านได้เพียงเล่มเดียว ทุกฤดูร้อนน้ำจะขึ้นถึงขั้นที่สาม"
DE = "Die steinerne Brücke am Eingang des Dorfes ist schmal, gerade ein Fuhrwerk paßt hinüber; im Sommer reicht das Wasser höher."
VI = "Cây cầu đá ở đầu làng rất hẹp, chỉ vừa một chiếc xe bò đi qua."

CASES = [
    (ZH, "gbk"), (ZH, "gb18030"), (ZH, "utf-8"), (TW, "big5"), (JA, "shift_jis"), (JA, "euc_jp"), (JA, "iso2022_jp"),
    (KO, "euc_kr"), (RU, "cp1251"), (RU, "koi8-r"), (RU, "iso8859-5"), (RU, "cp866"), (UK, "koi8-u"), (EL, "cp1253"),
    (EL, "iso8859-7"), (PL, "cp1250"), (PL, "iso8859-2"), (TR, "cp1254"), (AR, "cp1256"), (HE, "cp1255"), (TH, "cp874"),
    (DE, "cp1252"), (ZH, "utf-16"), (ZH, "utf-16-le"), (JA, "utf-16-be"), (RU, "utf-32"), (ZH, "utf-7"), (DE, "utf-8-sig"),
]  # fmt: skip
#: Those that pages come in.
WEB = [(text, codec) for text, codec in CASES if not codec.startswith(("utf", "cp866"))]


@pytest.mark.parametrize(("text", "codec"), CASES, ids=[f"{codec}-{text[:3]}" for text, codec in CASES])
def test_the_bytes_alone_say_it(text, codec):
    found = decode((text * 3).encode(codec))
    assert found is not None
    assert (found.text, found.replaced) == (text * 3, 0)


@pytest.mark.parametrize(("text", "codec"), WEB, ids=[f"{codec}-{text[:3]}" for text, codec in WEB])
def test_a_few_words_in_a_page_of_markup_are_enough(text, codec):
    menu = "<ul>" + '<li class="entry"><a href="/some/where">Read more about it</a></li>' * 200 + "</ul>"
    page = f"<html><head><script>var a = 'x';</script></head><body>{menu}<p>{text}</p>{menu}</body></html>"
    found = decode(page.encode(codec), ["iso-8859-1"])
    assert found is not None
    assert found.text == page


@pytest.mark.parametrize(
    ("label", "codec"),
    [("GB2312", "gb18030"), ("x-sjis", "cp932"), ("KS_C_5601-1987", "cp949"), ("big5-hkscs", "big5hkscs"),
     ("ISO-2022-JP", "iso2022_jp"), ("windows-1258", "cp1258"), ("x-mac-cyrillic", "mac-cyrillic")],
)  # fmt: skip
def test_labels_mean_what_browsers_take_them_for(label, codec):
    text = {"gb18030": ZH + "镕", "cp932": JA + "①", "cp949": KO + "뷁", "big5hkscs": TW, "iso2022_jp": JA, "cp1258": "Cây", "mac-cyrillic": RU}[codec]  # fmt: skip
    found = decode(text.encode(codec), [label])
    assert found is not None
    assert found.text == text


def test_what_is_stated_does_not_beat_what_cannot_be():
    for wrong in ("iso-8859-1", "utf-8", "nonsense", "us-ascii", "utf-16"):
        found = decode((ZH * 3).encode("gbk"), [wrong])
        assert found is not None
        assert found.text == ZH * 3
    assert decode(ZH.encode(), ["gbk"]).text == ZH  # type: ignore[union-attr]


def test_a_stray_byte_does_not_change_the_encoding():
    for text, codec, label in ((ZH * 9, "gbk", "gb2312"), (RU * 9, "utf-8", "utf-8"), (RU * 9, "utf-8", None)):
        data = text.encode(codec)
        found = decode(data[:-1] + b" \xff " + b"end", [label])
        assert found is not None
        assert found.text.startswith(text[:-1])
        assert 1 <= found.replaced <= 2


def test_english_with_quotes_of_windows_stays_english():
    text = "It\u2019s \u201cquoted\u201d text, caf\u00e9 included, and it goes on in plain words for a while. " * 20
    found = decode(text.encode("cp1252"))
    assert found is not None
    assert found.text == text


def test_labels_are_found():
    assert label_of_header('text/html; Charset="GBK"') == "GBK"
    assert label_of_header("text/html") is None
    assert labels_of_page(b'<meta http-equiv="Content-Type" content="text/html; charset=Big5">') == ["Big5"]
    assert labels_of_page(b"<meta charset = 'koi8-r'>") == ["koi8-r"]
    assert labels_of_page(b'<?xml version="1.0" encoding="euc-jp"?><html>') == ["euc-jp"]
    assert [codec_of(name) for name in ("utf8", "rot13", "hex", "nonsense", "", "idna")] == ["utf-8"] + [None] * 5


def test_without_the_package_nothing_is_guessed(monkeypatch):
    imported = builtins.__import__

    def refuse(name, *rest, **more):
        if name == "chardet":
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert decode((ZH * 3).encode("gbk")) is None
    assert decode((ZH * 3).encode("gbk"), ["gbk"]).text == ZH * 3  # type: ignore[union-attr]
    assert decode(ZH.encode()).text == ZH  # type: ignore[union-attr]


def test_text_files_in_any_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes((ZH * 3).encode("gb18030"))
    assert read(path).reasons == ["not-utf8"]
    assert read(path, encoding="auto").texts == [ZH * 3]
    path.write_bytes(ZH.encode("utf-8-sig"))
    assert read(path, encoding="auto").texts == [ZH]


@pytest.mark.data
def test_labelled_files(shared: Path):
    folder = shared / "data" / "language" / "dev" / "charset"
    rows = [json.loads(line) for line in (folder / "_manifest.jsonl").open(encoding="utf-8")]
    right = labelled = 0
    for row in rows:
        if row["python_codec"]:
            data = (folder / row["file"]).read_bytes()
            found = decode(data)
            assert found is not None
            labelled += 1
            right += found.text == data.decode(row["python_codec"], "replace").removeprefix("\ufeff")
    assert right >= 0.95 * labelled
