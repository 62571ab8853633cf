"""Phone numbers: international ones that exist, Chinese and North American forms, those of a country near its script, others
behind a word for "phone"."""

from __future__ import annotations

import re
from collections.abc import Iterator

import phonenumbers

#: Digits with the marks that people put between them, as far as they go. A run of more than `_RUN_DIGITS` is a table or a
#: sequence; a number in it has at most 18 digits in at most `_GROUPS` groups.
_RUN = re.compile(r"(?<![0-9A-Za-z_])(?:\+|\(\+?)?[0-9](?:[ ().\-/]{0,3}[0-9])*")
_RUN_DIGITS = 32
_GROUPS = 8
_CANDIDATE = re.compile(
    r"(?:\+|\(\+?)?[0-9](?:[ ().\-/]{0,3}[0-9]){5,17}(?![0-9])(?:\s?(?:x|ext\.?|分机|转)\s?[0-9]{1,6})?(?![0-9A-Za-z_]|-[0-9])"
)
_FIRST_GROUP = re.compile(r"[+(]*[0-9]+")
_EXTENSION = re.compile(r"\s?(?:x|ext\.?|分机|转)\s?[0-9]{1,6}\Z")

_CN_MOBILE = re.compile(
    r"(?:\+86|0086|86|\(\+?86\))?[ \-]?1(?:3[0-9]|4[5-9]|5[0-35-9]|6[2567]|7[0-8]|8[0-9]|9[0-35-9])[ \-]?[0-9]{4}[ \-]?[0-9]{4}"
)
_CN_LANDLINE = re.compile(
    r"(?:(?:\+|00)86[ \-]?)?(?:\(0[1-9][0-9]{1,2}\)[ \-]?|0[1-9][0-9]{1,2}[ \-])[2-9][0-9]{2,3}[ \-]?[0-9]{4}(?:-[0-9]{1,5})?"
)
_NANP = re.compile(
    r"(?:(?:\+|00)?1[\-. ])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[\-.])[2-9][0-9]{2}[\-.][0-9]{4}"
)
#: How numbers are written inside of a country, and what has to stand near for it to be that country. Each must be in its plan.
_LOCAL = (
    ("JP", re.compile("[\u3040-\u30ff]"), re.compile(r"0[0-9]{1,4}-[0-9]{1,4}-[0-9]{3,4}|0[0-9]{1,4}\([0-9]{1,4}\)[0-9]{4}")),
    ("KR", re.compile("[\uac00-\ud7a3]"), re.compile(r"\(?0[0-9]{1,2}\)?[\-. ][0-9]{3,4}[\-. ][0-9]{4}")),
    ("RU", re.compile("[а-яё]"), re.compile(r"8[ \-]?\(?[0-9]{3,4}\)?[ \-][0-9]{2,3}-[0-9]{2}-[0-9]{2}")),
    ("UA", re.compile("[іїєґ]"), re.compile(r"\(?0[0-9]{2}\)?[ \-][0-9]{3}[ \-][0-9]{2}[ \-][0-9]{2}")),
    ("TH", re.compile("[\u0e00-\u0e7f]"), re.compile(r"0[0-9]{1,2}-[0-9]{3}-[0-9]{4}")),
    ("IL", re.compile("[\u05d0-\u05ea]"), re.compile(r"0[0-9]{1,2}-[0-9]{7}")),
)
_LOCAL_SCRIPTS = re.compile("[\u3040-\u30ff\uac00-\ud7a3а-яёіїєґ\u0e00-\u0e7f\u05d0-\u05ea]")
_GROUPED = re.compile(r"\(?\+?[0-9]{1,5}\)?(?:[ .\-/]{1,2}\(?[0-9]{2,8}\)?){1,5}")
#: Dates somewhere in it, and what ends in a year ("GB/T 2260-2007").
_DATE = re.compile(
    r"(?<![0-9])(?:1[89]|20)[0-9]{2}[\-./][0-9]{1,2}[\-./][0-9]{1,2}(?![0-9])"
    r"|(?<![0-9])[0-9]{1,2}[\-./][0-9]{1,2}[\-./](?:1[89]|20)[0-9]{2}(?![0-9])|^[0-9]{3,5}-(?:19|20)[0-9]{2}$"
)
_DECIMAL = re.compile(r"[0-9]+\.[0-9]+|(?:[0-9]+\.){3,}[0-9]+|0[xX].*")
_HAN = re.compile("[\u4e00-\u9fff]")

#: Words for phone and calling in scripts that part words by spaces or have letters that words are made of.
_WORDS = (
    r"phone|telephone|telefone?|tele?phon|téléphone|teléfono|telefono|telefon|telefoon|telepon|tlf|telp?|tlp|tél|mobile?|mobiel|mob"
    r"|móvil|celular|cellulare|cel|handy|gsm|fax|faks|hotline|dial|answering|whatsapp|sms|viber"
    r"|ligue|llame|appelez|puh|puhelin|matkapuhelin|cep|komórka|(?:nomor|no\.?) hp|portable\s{0,2}:|sđt|đt|điện thoại"
)
#: Words that stand before other numbers too: a few digits in one piece behind them are a count.
_WEAK_WORDS = (
    r"call|reach|reached|ring|desk|cell|mi número|my number|meine nummer|(?:contact|text) (?:us|me|him|her|them)"
)
#: … of which one word says that a number follows: "Telefonnummer", "telefonnr", "telefonszám".
_COMPOUNDS = (
    r"(?:telefon|handy|mobil(?:funk|telefon)?|ruf|fax|telefax|phone|telefoon|gsm|puhelin|matkapuhelin)(?:s?nummer|nr|n[uú]mer[oe]?|numero|szám)"
)
_CYRILLIC = r"тел(?:ефон(?:а|у|ом|ы|и)?)?|моб(?:ильн(?:ый|ого))?|сот(?=[.:])|факс|звоните|дзвоніть|мобільн(?:ий|ого)"
_OTHERS = (
    r"電話|电话|手机|手機|携帯|座机|传真|傳真|热线|熱線|致电|拨打|撥打|请拨|联系方式|联系电话|(?:电话|手机|電話|手機)[^0-9\n]{1,8}号码|ファックス"
    r"|ＴＥＬ|ＦＡＸ|Ｔｅｌ|[℡☎☏✆📞📱🕾]\ufe0f?|전화|연락처|휴대폰|핸드폰|팩스|โทรศัพท์|โทร|มือถือ|เบอร์|هاتف|جوال|موبايل|تلفن|موبایل|טלפון|נייד"
    r"|फ़ोन|फ़ोन|फोन|मोबाइल|(?<![α-ωά-ώ])(?:τηλ(?:έφωνο)?|κινητό|φαξ)"
)
#: What may follow the word: "number is", "№", "(home)", "：" …
_BETWEEN = (
    r"(?:[\s.:：#）)\-/]{0,4}(?:(?:number|no|nr|num|nummer|número|numero|numéro|numer|kom|is|ist|est|es|me|us|at|on|to|or|ao|au|al|номер"
    r"|号码|號碼|番号|번호|号|是|为|為|は|는|은|नंबर|नम्बर|:"
    r"|[(（](?:home|work|office|mobile|cell|day|evening|direct|main|privat|dienstlich|自宅|会社|宅|办公|家)[)）])"
    r"[\s.:：]{0,3}){0,3}|[\s.:：]{1,2}гарячої лінії )"
)
#: A word for phone (or calling), what may follow it, then the number; the group is there if it is one of the weak words.
_WORD_BEFORE = re.compile(
    rf"(?:(?<![^\W\d_])(?:{_COMPOUNDS}|{_WORDS}|({_WEAK_WORDS}))(?![^\W\d_\u0e00-\U0010ffff])|(?<![а-яёіїєґ])(?:{_CYRILLIC})(?![а-яёіїєґ])|{_OTHERS})"
    rf"{_BETWEEN}[\s.:：/\-–]{{0,3}}\(?\Z",
    re.IGNORECASE,
)
#: A piece of each of these words, in small letters: where none stands, the pattern above need not be tried.
_PIECES = re.compile(
    "phon|fon|t[eé]l|tl[fp]|mob|móvil|cel|handy|gsm|fa[xk]|hotline|dial|answering|whatsapp|sms|viber|ligue|llame|appelez|puh|cep"
    "|komórka|hp|portable|đt|điện|call|reach|ring|desk|número|number|nummer|contact|text|ruf|тел|моб|сот|факс|звон|[電电手携座传傳热熱致拨撥请联]"
    "|ファ|[ＴＦｔｆ℡☎☏✆📞📱🕾]|전화|연락|휴대|핸드|팩스|โทร|มือถือ|เบอร์|هاتف|جوال|موبايل|تلفن|موبایل|טלפון|נייד|फ|मोबाइल|τηλ|κινητό|φαξ"
)
#: One letter stands for the word, if what follows begins as numbers in a country do.
_LETTER_BEFORE = re.compile(r"(?<![^\W\d_])(?:T|M|P|Ph|Tf|H)[.:]\s{0,2}\Z", re.IGNORECASE)
_CALL_OF_FUNCTION = re.compile(r"[A-Za-z0-9_]\(\Z")
_YEARS = re.compile(r"(?:(?:19|20)[0-9]{2}[ \-/.]*)+")
_WORD_AFTER = re.compile(r"[\s\-(]{0,2}(?:office|fax|mobile|cell|home|direct)(?![A-Za-z])", re.IGNORECASE)
_MAIL = re.compile(r"[0-9A-Za-z_\-]@[0-9A-Za-z\-]{2,63}\.")
_MONEY_BEFORE = re.compile(r"[$€£¥￥#№]\s?\Z")
_REACH = 48


def find_phones(text: str) -> Iterator[tuple[int, int]]:
    """Phone numbers, each with its country code and extension."""
    for run in _RUN.finditer(text):
        if 6 <= sum(c.isdigit() for c in run[0]) <= _RUN_DIGITS:
            yield from _phones_in_run(text, run.start(), run.end())


def _phones_in_run(text: str, position: int, end: int) -> Iterator[tuple[int, int]]:
    while position < end:
        match = _CANDIDATE.match(text, position)
        stop = _phone_end(text, match) if match else 0
        if stop:
            yield position, position + stop
            position += stop
        elif group := _FIRST_GROUP.match(text, position):  # the second group may begin a number
            position = group.end()
        while position < end and text[position] in " ().-/":
            position += 1


def _phone_end(text: str, match: re.Match[str]) -> int:
    """Where the phone number at the beginning of the run ends, in characters from its start; 0 if there is none."""
    run = match[0]
    before = text[max(0, match.start() - _REACH) : match.start()]
    if len(re.findall("[0-9]+", run)) > _GROUPS or _MONEY_BEFORE.search(before):
        return 0
    after = text[match.end() : match.end() + _REACH]
    word = _is_called(before, run) or _WORD_AFTER.match(after) is not None
    near = before[-24:] + after[:24]
    chinese = _HAN.search(near) is not None
    local = run[0] in "0(8" and _LOCAL_SCRIPTS.search(near) is not None
    mail = _MAIL.search(before.rpartition("\n")[2] + " " + after.partition("\n")[0]) is not None
    for stop in _cuts(run):
        if _is_phone(run[:stop], word, chinese, mail) or (local and _is_local(run[:stop], near)):
            return stop
    return 0


def _is_called(before: str, run: str) -> bool:
    """Whether what stands in front of a run calls it a phone number."""
    if _CALL_OF_FUNCTION.search(before):
        return False
    long = sum(c.isdigit() for c in run) >= 9
    if _PIECES.search(before.lower()) and (word := _WORD_BEFORE.search(before)):
        return word[1] is None or long or not run.isdigit() or word.end(1) < word.end() - 2
    return run[0] in "0(" and long and _LETTER_BEFORE.search(before) is not None


def _is_local(value: str, near: str) -> bool:
    """Whether it is a number as it is written inside of the country whose script stands near."""
    for country, script, form in _LOCAL:
        if form.fullmatch(value) and script.search(near):
            try:
                number = phonenumbers.parse(value, country)
            except phonenumbers.NumberParseException:
                return False
            return phonenumbers.is_valid_number(number)
    return False


def _cuts(run: str) -> list[int]:
    """Where a run may be cut: its end first, then before each gap, longest first."""
    gaps = [m.start() for m in re.finditer(r"(?<=[0-9)])[ /(](?=.)", run)]
    return [len(run), *reversed(gaps)]


def _is_phone(value: str, word: bool, chinese: bool, mail: bool) -> bool:
    """Whether it is a phone number, given a word for phone before it, Chinese around it, an e-mail address near it."""
    core = _EXTENSION.sub("", value)
    digits = sum(c.isdigit() for c in core)
    if digits < 6 or _DATE.search(core) or _YEARS.fullmatch(core) or (_DECIMAL.fullmatch(core) and not word):
        return False
    if core.startswith(("+", "(+", "00")):
        return _is_international(core, word)
    if _CN_MOBILE.fullmatch(core):
        return word or chinese or mail or not core.isdigit()
    if _CN_LANDLINE.fullmatch(core) and (word or chinese):
        return True
    if _NANP.fullmatch(core):
        return True
    if core.count("(") != core.count(")") or digits > 15:
        return False
    if word:
        return digits >= 7 or not core.isdigit()
    return (
        mail
        and not core.isdigit()
        and 7 <= digits <= 12
        and "/" not in core
        and _GROUPED.fullmatch(core) is not None
    )


def _is_international(core: str, word: bool) -> bool:
    """`+` or `00`, a country code, and a number that the numbering plan of the country has (or could have, after a word)."""
    plain = core.lstrip("(")
    plain = "+" + plain[2:].lstrip(" -") if plain.startswith("00") else plain
    try:
        number = phonenumbers.parse(plain, None)
    except phonenumbers.NumberParseException:
        return False
    if phonenumbers.is_valid_number(number):
        return True
    formed = number.country_code in {1, 41, 44, 46, 86} and phonenumbers.is_possible_number(number)
    return phonenumbers.is_possible_number(number) if word else formed and not core.lstrip("(+").isdigit()
