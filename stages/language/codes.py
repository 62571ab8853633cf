"""Codes of languages: whatever people and models call a language, one short code comes back.

Short code = ISO 639-1 where there is one, else ISO 639-3. `eng`, `en`, `English`, `en-GB` are `en`; `zho_Hans`, `cmn`,
`zh-CN`, `Chinese` are `zh`. Script and region are left off: they say how a language is written, not which it is.
"""

from __future__ import annotations

import difflib
import re

#: short code, other codes (ISO 639-2/B, 639-3, withdrawn, members of a macrolanguage), English names.
_TABLE = """
aa aar Afar; ab abk Abkhazian|Abkhaz; ace - Acehnese; ae ave Avestan; af afr Afrikaans; ak aka,twi,tw,fat Akan|Twi; gsw - Alemannic|Swiss German
am amh Amharic; an arg Aragonese; ar ara,arb,arz,ary,apc,ajp,ars,acm,acq,aeb Arabic; as asm Assamese; ast - Asturian; av ava Avaric|Avar
ay aym,ayr Aymara; az aze,azj,azb Azerbaijani; ba bak Bashkir; ban - Balinese; bar - Bavarian; bcl - Central Bikol|Bikol; be bel Belarusian; bg bul Bulgarian
bh bih Bihari; bho - Bhojpuri; bi bis Bislama; bm bam Bambara; bn ben Bengali|Bangla; bo bod,tib Tibetan; bpy - Bishnupriya; br bre Breton
bs bos Bosnian; bug - Buginese; bxr bua Buryat; ca cat Catalan|Valencian; cbk - Chavacano; ccp - Chakma; ce che Chechen; ceb - Cebuano; ch cha Chamorro; chr - Cherokee; ckb - Central Kurdish|Sorani
co cos Corsican; cr cre,csw,crk Cree; crh - Crimean Tatar; cs ces,cze Czech; cu chu Church Slavic; cv chv Chuvash; cy cym,wel Welsh; da dan Danish
de deu,ger German; diq - Dimli|Zazaki; dsb - Lower Sorbian; dty - Doteli; dv div Divehi|Dhivehi|Maldivian; dz dzo Dzongkha; ee ewe Ewe
el ell,gre Greek|Modern Greek; eml - Emilian-Romagnol; en eng English; eo epo Esperanto; es spa Spanish|Castilian; et est,ekk Estonian; eu eus,baq Basque
ext - Extremaduran; fa fas,per,pes,prs Persian|Farsi|Dari; ff ful,fuv,fuf,fuc Fulah|Fulfulde; fi fin Finnish; fj fij Fijian; fo fao Faroese; fr fra,fre French
frr - North Frisian; fur - Friulian; fy fry West Frisian|Frisian; ga gle Irish; gcf - Guadeloupean Creole; gcr - Guianese Creole; gd gla Scottish Gaelic|Gaelic
gl glg Galician; gn grn,gug Guarani; gom kok,knn Konkani; grc - Ancient Greek; gu guj Gujarati; guw - Gun; gv glv Manx; ha hau Hausa; haw - Hawaiian
he heb,iw,hbo Hebrew; hi hin Hindi; hif - Fiji Hindi; ho hmo Hiri Motu; hr hrv Croatian; hsb - Upper Sorbian; ht hat Haitian Creole|Haitian
hu hun Hungarian; hy hye,arm Armenian; hz her Herero; ia ina Interlingua; id ind,in Indonesian; ie ile Interlingue; ig ibo Igbo; ii iii Sichuan Yi
ik ipk Inupiaq; ilo - Iloko|Ilocano; io ido Ido; is isl,ice Icelandic; it ita Italian; iu iku,ike Inuktitut; ja jpn,jp Japanese; jbo - Lojban
jv jav,jw Javanese; ka kat,geo Georgian; kab - Kabyle; kg kon,kng Kongo; ki kik Kikuyu; kj kua Kuanyama; kk kaz Kazakh; kl kal Kalaallisut|Greenlandic
km khm Khmer|Cambodian; kn kan Kannada; ko kor Korean; kr kau,knc Kanuri; krc - Karachay-Balkar; ks kas Kashmiri; ku kur,kmr,sdh Kurdish|Kurmanji
kv kom,kpv,koi Komi; kw cor Cornish; ky kir Kyrgyz|Kirghiz; la lat Latin; lb ltz Luxembourgish; lez - Lezgian; lg lug Ganda|Luganda; li lim Limburgish
lij - Ligurian; lmo - Lombard; ln lin Lingala; lo lao Lao; lrc - Northern Luri; lt lit Lithuanian; ltg - Latgalian; lu lub Luba-Katanga; lv lav,lvs Latvian
mai - Maithili; mg mlg,plt Malagasy; mh mah Marshallese; mhr chm Meadow Mari|Mari; mi mri,mao Maori; min - Minangkabau; mk mkd,mac Macedonian; ml mal Malayalam
mn mon,khk Mongolian; mni - Manipuri|Meitei; mr mar Marathi; mrj - Hill Mari; ms msa,may,zsm,zlm Malay; mt mlt Maltese; mul - Multiple languages; mwl - Mirandese; my mya,bur Burmese|Myanmar
myv - Erzya; mzn - Mazanderani; na nau Nauru; nah nhn,nhe,nhw Nahuatl; nap - Neapolitan; nd nde North Ndebele; nds - Low German|Low Saxon; ne nep,npi Nepali
new - Newari; ng ndo Ndonga; nl nld,dut Dutch|Flemish; nn nno Norwegian Nynorsk|Nynorsk; no nor,nb,nob Norwegian|Norwegian Bokmal|Bokmal
nqo - NKo; nr nbl South Ndebele; nso - Northern Sotho|Sepedi; nv nav Navajo; ny nya Chichewa|Nyanja; oc oci Occitan; oj oji,ojb Ojibwa; om orm,gaz Oromo; or ori,ory Odia|Oriya
os oss Ossetian; pa pan,pnb Punjabi|Panjabi; pam - Pampanga; pap - Papiamento; pcm - Nigerian Pidgin; pfl - Palatine German; pi pli Pali; pl pol Polish
pms - Piedmontese; ps pus,pbt,pbu,pst Pashto; pt por Portuguese; qu que,quy,quz,qub,qug,quh,qul,qva,qvc,qvm,qvn,qwh,qxn,qxu Quechua; rm roh Romansh; rn run Rundi; ro ron,rum,mo Romanian|Moldavian
ru rus Russian; rue - Rusyn; rw kin Kinyarwanda; sa san Sanskrit; sah - Yakut|Sakha; sat - Santali; sc srd,src,sro Sardinian; scn - Sicilian; sco - Scots
sd snd Sindhi; se sme Northern Sami; sg sag Sango; sh hbs Serbo-Croatian; shn - Shan; si sin Sinhala|Sinhalese; sk slk,slo Slovak; sl slv Slovenian|Slovene
sm smo Samoan; sn sna Shona; so som Somali; sq sqi,alb,als Albanian; sr srp,srl Serbian; ss ssw Swati; st sot Southern Sotho|Sesotho; su sun Sundanese
sv swe Swedish; sw swa,swh Swahili; syr aii,cld Syriac; szl - Silesian; ta tam Tamil; te tel Telugu; tg tgk Tajik; th tha Thai; ti tir Tigrinya; tk tuk Turkmen
tl tgl,fil Tagalog|Filipino; tn tsn Tswana|Setswana; to ton Tonga; tr tur Turkish; ts tso Tsonga; tt tat Tatar; ty tah Tahitian; tyv - Tuvinian|Tuvan
ug uig Uyghur|Uighur; uk ukr Ukrainian; und - Undetermined; ur urd Urdu; uz uzb,uzn,uzs Uzbek; vai - Vai; ve ven Venda; vec - Venetian; vep - Veps
vi vie Vietnamese; vls - West Flemish; vo vol Volapuk; wa wln Walloon; war - Waray; wo wol Wolof; wuu - Wu Chinese|Shanghainese; xal - Kalmyk
xh xho Xhosa; xmf - Mingrelian; yi yid,ydd,ji Yiddish; yo yor Yoruba; yue - Cantonese; za zha,zyb Zhuang; zgh - Tamazight|Standard Moroccan Tamazight
zh zho,chi,cmn,cn Chinese|Mandarin|Mandarin Chinese|Simplified Chinese|Traditional Chinese; zu zul Zulu; zxx - No linguistic content
"""
#: What speakers call some of them.
_OWN_NAMES = {
    "中文": "zh", "汉语": "zh", "漢語": "zh", "日本語": "ja", "한국어": "ko", "español": "es", "français": "fr", "deutsch": "de",
    "português": "pt", "русский": "ru", "العربية": "ar", "हिन्दी": "hi", "ไทย": "th", "tiếng việt": "vi", "italiano": "it",
    "nederlands": "nl", "polski": "pl", "українська": "uk", "türkçe": "tr", "فارسی": "fa",
}  # fmt: skip


def _read() -> tuple[dict[str, str], dict[str, str]]:
    """`(anything in lower case -> short code, short code -> English name)`."""
    aliases = dict(_OWN_NAMES)
    names = {}
    for entry in re.split(r"[;\n]+", _TABLE.strip()):
        code, others, called = entry.strip().split(" ", 2)
        if called == "-":
            continue
        names[code] = called.split("|")[0]
        for alias in (code, *others.split(","), *called.split("|")):
            if alias != "-":
                aliases.setdefault(alias.lower(), code)
    return aliases, names


ALIASES, NAMES = _read()


def short_code(text: str) -> str:
    """The short code of a language given by code, BCP 47 tag, name, or label of a model; ValueError if there is none.

    The error names the nearest spelling and says what is accepted.
    """
    wanted = text.strip().removeprefix("__label__").lower().replace("_", "-")
    found = ALIASES.get(wanted) or ALIASES.get(wanted.split("-")[0])
    if found is not None and (wanted in ALIASES or len(wanted.split("-")[0]) <= 3):
        return found
    near = difflib.get_close_matches(wanted, sorted(ALIASES), n=1, cutoff=0.7)
    hint = f"; did you mean `{near[0]}`?" if near else "."
    raise ValueError(
        f"`{text}` is no language that is known here{hint} Accepted are ISO 639 codes, BCP 47 tags and English names:"
        f" {', '.join(sorted(NAMES))}"
    )
