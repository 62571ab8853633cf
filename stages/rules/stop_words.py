"""Function words that good running text of a language can hardly avoid: the "stop word" rule asks for two of them.

English has the eight of the Gopher paper (Rae et al., 2021, A1). A language that is not here has no such rule.
"""

from __future__ import annotations

STOP_WORDS: dict[str, tuple[str, ...]] = {
    language: tuple(words.split())
    for language, words in {
        "en": "the be to of and that have with",
        "zh": "的 了 是 在 不 有 和 这 這 就 也 人 一 之 而 其 为 為 以",
        "ja": "の は に を た が で て と し れ さ な",
        "ko": "이 그 것 수 등 및 있다 있는 하는 한 할 대한 그리고",
        "de": "der die das und in den von zu mit ist nicht auf für",
        "fr": "le la les de des et un une du que est dans pour",
        "es": "el la de que y en los las un por con una para",
        "pt": "o a de que e do da em um para com os não",
        "it": "il la di che e un per una non del con sono i",
        "nl": "de het een van en in is dat op te met voor",
        "sv": "och i att det som en på är av för med till",
        "da": "og i at det er en til på som med for af",
        "no": "og i det er en til på som med for av å",
        "nn": "og i det er ein til på som med for av å ikkje",
        "fi": "ja on ei se että oli joka mutta tai kun ovat myös",
        "pl": "i w na z się nie do to że jest o jak",
        "cs": "a v se na je že s z do o to by",
        "sk": "a v sa na je že s z do o to by",
        "hu": "a az és hogy nem is egy ez van volt meg",
        "ro": "și de în la a cu pe să nu care din o",
        "tr": "ve bir bu da de için ile çok olarak daha ne gibi",
        "ru": "и в не на что с он как а то по это",
        "uk": "і в не на що з та як до у це він",
        "bg": "и в на да е се от за не че с по",
        "el": "και το του η να της με για στο την από που",
        "ca": "de la que i el en a les per un amb no",
        "id": "yang dan di dengan untuk dari ini itu dalam pada tidak ke",
        "ms": "yang dan di dengan untuk dari ini itu dalam pada tidak ke",
        "vi": "và của là có không được cho một các trong người những",
        "hi": "के है में की और से का को पर यह कि ने",
        "ar": "في من على أن إلى عن التي ما لا هذا مع كان و",
        "fa": "و در به از که این را با است برای آن یک",
        "he": "של את על לא הוא זה עם כי גם או היא אל",
    }.items()
}
