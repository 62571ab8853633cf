"""E-mail and public IP addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

_LETTER = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f"  # ASCII and Latin with marks: Chinese text may touch an address
#: What may stand before the @ (a little less than `atext` of RFC 5322), matched backwards from it.
_LOCAL = re.compile(rf"[{_LETTER}0-9_](?:[{_LETTER}0-9.!#$%&'*+/=?^_{{|}}~\-]{{0,62}}[{_LETTER}0-9_+\-])?\Z")
_LOCAL_CHARACTER = re.compile(rf"[{_LETTER}0-9.!#$%&*+=?^_{{|}}~\-]")
_DOMAIN = re.compile(
    rf"(?:[{_LETTER}0-9](?:[{_LETTER}0-9\-]{{0,61}}[{_LETTER}0-9])?\.){{1,8}}(?:xn--[A-Za-z0-9\-]{{1,59}}|[{_LETTER}]{{2,24}})"
)
_LOCAL_MAX, _DOMAIN_MAX = 64, 253
#: `https://user:password@host` and `ssh://git@host` name a user of a machine.
_USER_OF_URL = re.compile(r"://[^/\s@]{0,64}\Z")
#: `a@b.T(x)`, `a@b.c[0]` are matrix products, `a@b.c@d` is none of both.
_CODE_AFTER = re.compile(r"[(\[][A-Za-z0-9_)'\"]|@")


def find_emails(text: str) -> Iterator[tuple[int, int]]:
    """Each `local@domain.tld`. At every @ at most 64 characters to the left and 253 to the right are looked at."""
    at = text.find("@")
    floor = 0
    while at >= 0:
        following = text.find("@", at + 1)
        domain = _DOMAIN.match(text, at + 1, at + 1 + _DOMAIN_MAX)
        if domain is not None:
            window = text[max(floor, at - _LOCAL_MAX - 1) : at]
            start = at - len(_local_part(window))
            if (
                start < at
                and not _CODE_AFTER.match(text, domain.end())
                and not _USER_OF_URL.search(text, max(0, start - 80), start)
            ):
                yield start, domain.end()
                floor = domain.end()
        at = following


def _local_part(window: str) -> str:
    """The end of the window that can be a local part; empty if it is none, or more than 64 characters."""
    start = len(window)
    while start > 0 and (_LOCAL_CHARACTER.match(window[start - 1]) or window[start - 1] in "'/"):
        start -= 1
    local = window[start:]
    for opener in ("'", "/", "=", "|", "*"):  # quotes, paths, `key=address`, tables, emphasis
        head, found, tail = local.rpartition(opener)
        if found and not (opener == "'" and head[-1:].isalpha() and tail[:1].isalpha()):
            local = tail
    local = local.lstrip(".!#$%&*+=?^{|}~-'/")
    return local if _LOCAL.fullmatch(local) and ".." not in local and len(local) <= _LOCAL_MAX else ""


_V4 = re.compile(r"(?<![0-9A-Za-z._\-])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z_]|\.[0-9]|-[0-9])")
_V6 = re.compile(
    r"(?<![0-9A-Za-z:._])(?=[0-9A-Fa-f:]{0,4}:)(?:[0-9A-Fa-f:]{1,34}:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f:]{3,39})"
    r"(?![0-9A-Za-z:_])"
)

#: Not public (RFC 6890 and successors); the documentation ranges count as public, because they stand for such.
#: Written out, because the answer of `ipaddress.is_global` differs between versions of Python.
_PRIVATE = tuple(
    ipaddress.IPv4Network(net)
    for net in ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
                "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3")
)  # fmt: skip
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
#: Of one network, but made from the hardware address of a device, which goes where its owner goes; `fe80::1` and the like are
#: what people give to routers.
_LINK_LOCAL, _LAST_OF_ROUTERS = ipaddress.IPv6Network("fe80::/10"), 0xFF
#: Eight groups written out are nothing else than an address, if so many have at least three digits: bytes have two.
_GROUPS_IN_FULL, _LONG_GROUPS = 8, 5

_VERSION_BEFORE = re.compile(
    r"(?:\b(?:version|versions|ver|release|releases|section|sec|chapter|clause|update|upgrade|replaces|firmware|build|patch"
    r"|kernel|driver|revision|rev|v)|版本|版|章|节|節|[A-Za-z]/|§)[\s.:=\"'(]{0,3}(?:is |to |from |number )?\Z",
    re.IGNORECASE,
)
_HOST_BEFORE = re.compile(
    r"(?:\b(?:ip|ips|ipv4|addr|address|dns|server|servers|nameserver|host|hosts|ping|ssh|gateway|router|resolver|client"
    r"|curl|telnet|traceroute|connect|proxy)|@|//|地址|服务器|伺服器|网关|サーバー|адрес|адреса)"
    r"[\s.:=\"'(为是]{0,4}(?:is |to |at |from |of )?\Z",
    re.IGNORECASE,
)
_PORT_AFTER = re.compile(r":[0-9]{2,5}(?![0-9A-Za-z.:])")
#: Few digits and no number from 100 on: that looks like a version, and counts only behind a word such as "host".
_DIGITS_OF_A_VERSION = 6
_LARGEST_OF_A_VERSION = 99


def find_ips(text: str) -> Iterator[tuple[int, int]]:
    """Public IPv4 addresses that are not version or section numbers; IPv6 addresses that are global, or of one device."""
    for match in _V4.finditer(text):
        if _is_public_v4(match[0]) and _is_host(text, match):
            yield match.span()
    for match in _V6.finditer(text):
        value = match[0].rstrip(":") if not match[0].endswith("::") else match[0]
        if value.count(":") >= 2 and _is_personal_v6(value):
            yield match.start(), match.start() + len(value)


def _is_host(text: str, match: re.Match[str]) -> bool:
    before = text[max(0, match.start() - 32) : match.start()]
    if _HOST_BEFORE.search(before) or _PORT_AFTER.match(text, match.end()):
        return True
    if _VERSION_BEFORE.search(before):
        return False
    octets = match[0].split(".")
    return len("".join(octets)) > _DIGITS_OF_A_VERSION or max(map(int, octets)) > _LARGEST_OF_A_VERSION


def _is_public_v4(value: str) -> bool:
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:  # an octet over 255, or a leading zero
        return False
    return not any(address in net for net in _PRIVATE)


def _is_personal_v6(value: str) -> bool:
    try:
        address = ipaddress.IPv6Address(value)
    except ValueError:
        return False
    if address.ipv4_mapped is not None:
        return _is_public_v4(str(address.ipv4_mapped))
    if address in _LINK_LOCAL:
        return int(address) & (2**64 - 1) > _LAST_OF_ROUTERS
    groups = value.split(":")
    if len(groups) == _GROUPS_IN_FULL and sum(len(group) >= 3 for group in groups) >= _LONG_GROUPS:
        return True
    return address in _PUBLIC_V6
