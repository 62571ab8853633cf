"""The table of speeds in README.md and README.zh-CN.md, from the results that are kept.

    python -m benchmarks.table

writes it anew; a test holds both pages to the results.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.measure import RESULTS

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?<=<!-- figures: speed begin -->\n).*?(?=<!-- figures: speed end -->)", re.DOTALL)

#: Page -> the heads of its columns.
PAGES = {
    "README.md": ("what, one core", "gristmill", "peer", "unit", "peer is", "ratio"),
    "README.zh-CN.md": ("单核", "gristmill", "对照", "单位", "对照的是", "倍数"),
}

#: Results, measure, and what it is in both languages.
ROWS = (
    ("minhash", "minhash.text", "text to MinHash signatures", "文本到 MinHash 签名"),
    ("minhash", "minhash.text.datasketch", "text to MinHash signatures", "文本到 MinHash 签名"),
    ("minhash", "minhash.text.datatrove", "text to MinHash signatures", "文本到 MinHash 签名"),
    ("dedup", "dedup.all.datatrove", "near-duplicate removal, all of it", "近似去重全过程"),
    ("rules", "rules.fineweb", "rules, with decisions", "质量规则（含判定）"),
    ("rules", "rules.fineweb.injected", "rules, with decisions", "质量规则（含判定）"),
    ("clean", "clean.chain", "normalize, language, rules, PII", "规范化、语种、规则、隐私信息"),
    ("bpe", "bpe.train32k", "training a tokenizer of 32,768", "训练 32,768 词表的分词器"),
    ("bpe", "bpe.train32k.rustbpe", "training a tokenizer of 32,768", "训练 32,768 词表的分词器"),
    ("encode", "encode.english", "encoding, English", "编码，英文"),
    ("encode", "encode.english.tiktoken", "encoding, English", "编码，英文"),
    ("encode", "encode.chinese", "encoding, Chinese", "编码，中文"),
    ("encode", "encode.code", "encoding, code", "编码，代码"),
    ("loader", "loader.tokens.litdata", "batches for training", "训练批次"),
    ("train", "train.step", "a training step, on a CPU", "CPU 上的训练步"),
)


def table(page: str) -> str:
    """The rows for a page, Markdown."""
    chinese = "zh" in page
    lines = [PAGES[page], ("---",) * len(PAGES[page])]
    for name, measure, english, translated in ROWS:
        measures = json.loads((RESULTS / f"{name}.json").read_bytes())["measures"]
        (one,) = (row for row in measures if row["name"] == measure and "ratio" in row)
        rates = [f"{one[who]:,.4g}" if one[who] < 10_000 else f"{one[who]:,.0f}" for who in ("ours", "peer")]
        ratio = f"{one['ratio']:.0f}" if one["ratio"] >= 10 else f"{one['ratio']:.2g}"
        lines.append((translated if chinese else english, *rates, one["unit"], one["peer_name"], ratio))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(BLOCK.sub(lambda _, page=page: table(page), path.read_text(encoding="utf-8")), encoding="utf-8")
