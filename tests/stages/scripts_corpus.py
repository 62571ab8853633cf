"""Texts of many scripts that every row-local stage has to take as they are."""

from __future__ import annotations

import pyarrow as pa

from stages.document import document_batch

TEXTS = {
    "empty": "",
    "blank": " \n\t\u3000\n",
    "one word": "word",
    "zh": "村口那座石桥是用青石砌成的，桥面不宽，刚好能让一辆牛车通过。每年夏天涨水的时候，水位会漫到第三级台阶。",
    "zh mixed": "我们用 PyTorch 训练模型，batch size 设为 32；电话13800138000，邮箱 li@example.com。",
    "ja": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。カタカナもー、ある。",
    "ko": "한국어 문장은 띄어쓰기를 합니다. 전화 010-1234-5678 로 연락하세요.",
    "th": "ภาษาไทยไม่มีการเว้นวรรคระหว่างคำ\u200bแต่มีการเว้นวรรคระหว่างประโยค",
    "hi": "यह हिन्दी का एक वाक्य है। क्‍या आप समझते हैं?",
    "ar": "هذه جملة باللغة العربية، وفيها أرقام ١٢٣ و٤٥٦.",
    "fa": "می‌خواهم این متن را بخوانم.",
    "ru": "Это предложение на русском языке, и в нём есть слова.",
    "emoji": "😀👩‍👩‍👧🏳️‍🌈🇨🇳",
    "decomposed": "Cafe\u0301 re\u0301sume\u0301\u00a0\u00ad\ufeffnaïve",
    "controls": "a\x00b\x07c\x1bd\u2028e\r\nf\rg\u0085h",
    "astral": "𝒂𝒃𝒄 dan@example.com 𝒅𝒆𝒇",
    "full width": "ＡＢＣ　①ﬁ１２３",
    "one long line": "The quick brown fox jumps over the lazy dog, and then it does so again. " * 400,
    "many lines": "\n\n\n\n".join(["- item number one...", "• item two…", "# three", ""] * 30),
    "numbers": "4111 1111 1111 1111, 192.0.2.44, GB82 WEST 1234 5698 7654 32, 11010519491231002X",
}


def batch(texts: list[str] | None = None, source: str = "web") -> pa.RecordBatch:
    """A document batch of these texts, or of all of `TEXTS`."""
    texts = list(TEXTS.values()) if texts is None else texts
    return document_batch(source, ["a.jsonl"] * len(texts), list(range(len(texts))), texts)
