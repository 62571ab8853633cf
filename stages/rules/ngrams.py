"""Words and n-grams of a text: how many, how much of it repeats.

The letters of all words are put end to end, because n-grams that repeat are compared by their letters alone. Most n-grams
stand once: a look at the 16 bytes from each word on tells which can repeat, and only those go into a set.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.rules.columns import (
    ALPHABETIC,
    PLAIN,
    PLAIN_CHARACTERS,
    REPEATED_NGRAMS,
    REPEATED_SIZES,
    TOP,
    TOP_SIZES,
    UNITS,
    UNITS_PER_WORD,
    WORDS,
)
from stages.rules.hashing import SEED, absorb, add, clear, close, hash_bytes, short_hash
from stages.text.kernels import (
    ALPHA,
    CLASS,
    END,
    JOIN,
    OTHER,
    PUNCT,
    SPACE,
    SYMBOL_TOKEN,
    UNIT,
    UNIT_TOKEN,
    decode,
    next_token,
)
from stages.text.memory import copy_bytes, prefetch
from stages.text.vectors import bits, highest, load8, lowest, masks

_TOP_FIRST, _TOP_COUNT = TOP_SIZES[0], len(TOP_SIZES)
_REPEATED_FIRST, _REPEATED_COUNT = REPEATED_SIZES[0], len(REPEATED_SIZES)
_LOOK = 16
#: Hashes that are made before the first of them is looked up: their places in the set are fetched meanwhile.
_BLOCK = 32
#: An n-gram is hashed as a polynomial in this, with the hashes of its words as coefficients.
_BASE = np.uint64(0xD1342543DE82EF95)
_ONE, _8, _64 = np.uint64(1), np.uint64(8), np.uint64(64)
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def new_scratch():
    """Arrays that grow with the longest text: see `read_words`."""
    size = 1024
    return (
        np.empty(size, np.uint64), np.empty(size + 1, np.int64), np.empty(8 * size, np.uint8),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _longer(array, used):
    longer = np.empty(2 * len(array) + 64, array.dtype)
    longer[:used] = array[:used]
    return longer


@njit(cache=True, nogil=True)
def _look_at(data, i, end, classes):
    """`(characters of a word, whether one is a letter, whether one is no punctuation)`."""
    length = 0
    letter = plain = False
    while i < end:
        code, i = decode(data, i, end)
        value = np.int64(classes[code])
        letter = letter or value & ALPHA != 0
        plain = plain or value & PUNCT == 0
        length += 1
    return length, letter, plain


@njit(inline="always")
def _characters(letters, start, stop):
    """Characters in the UTF-8 letters[start:stop]."""
    count = 0
    for byte in letters[start:stop]:
        count += byte & 0xC0 != 0x80
    return count


@njit(inline="always")
def _note_stop_word(word, hashes, seen, number):
    """Marks a word in `seen` with the number of the text, if it is in the hash table of stop words; else the place behind.

    There is no branch in it: every third word is one, in no order that a processor could learn.
    """
    none = len(hashes) - 1
    slot = np.int64(word & np.uint64(none - 1))
    here, behind = np.int64(hashes[slot] == word), np.int64(hashes[slot + 1] == word)
    seen[none + 1 + here * (slot - none - 1) + behind * (slot - none)] = number


@njit(cache=True, nogil=True)
def collect_stop_words(stop_words, seen, number, masks_L):
    """Sets a bit for each stop word that was seen in the text of this number, in the masks of all languages that have it."""
    _, firsts, bits = stop_words
    for slot in range(len(seen) - 1):
        if seen[slot] == number:
            for at in range(firsts[slot], firsts[slot + 1]):
                masks_L[bits[at] >> 6] |= _ONE << np.uint64(bits[at] & 63)


@njit(inline="always")
def _take(data, start, stop, letters, at):
    """Puts a word behind the letters before it, which end at `at`, and returns its hash. 16 bytes behind it can be read."""
    size = stop - start
    if size < 16:
        copy_bytes(letters, at, data, start, 16)
        return short_hash(data, start, size)
    copy_bytes(letters, at, data, start, size)
    return hash_bytes(data, start, stop)


@njit(inline="always")
def _block(data, i, end):
    """`(first bits of words, bits of words, bits of letters, length)` of the ASCII bytes from byte i on, 64 at most.

    Only as many count as `length` says: up to the first byte that is not ASCII, or up to a word that may go on behind
    the block. It begins the next block, or is read alone where `length` is 0.
    """
    letters, digits, apostrophes, points, high = masks(data, i)
    length = min(end - i, np.int64(64))
    inside = _ONES >> (_64 - np.uint64(length))
    letters, digits = letters & inside, digits & inside
    word = letters | digits
    word |= apostrophes & (word << _ONE) & (letters >> _ONE) | points & (digits << _ONE) & (digits >> _ONE)
    known = lowest(high)
    is_last = known >= length and length == end - i
    length = min(length, known)
    below = _ONES >> (_64 - np.uint64(length))
    starts = word & ~(word << _ONE) & below
    if not is_last and starts:
        first = highest(starts)
        stop = first + lowest(~(word >> np.uint64(first)))
        if stop >= length or (stop + 1 == length and (apostrophes | points) >> np.uint64(stop) & _ONE):
            length = first
            below = (_ONE << np.uint64(length)) - _ONE
            starts &= below
    return starts, word & below, letters & below, length


@njit(inline="always")
def _without_letters(starts, word, letters):
    """How many of the words hold no letter: a one that is added to the first bit of such a word is carried out of it."""
    others = word & ~letters
    carried = others + (starts & others)
    return bits(carried & ~word) + (carried < others)


@njit(inline="always")
def _three_bytes(data, i):
    """data[i:i + 3] as a little-endian number."""
    return np.uint64(data[i]) | np.uint64(data[i + 1]) << _8 | np.uint64(data[i + 2]) << np.uint64(16)


@njit(inline="always")
def _code(data, i):
    """The code point of the three bytes of UTF-8 at byte i."""
    lead, middle, last = np.int64(data[i]), np.int64(data[i + 1]), np.int64(data[i + 2])
    return (lead & 0x0F) << 12 | (middle & 0x3F) << 6 | (last & 0x3F)


@njit(inline="always")
def _alone(data, i, end, classes):
    """What `classes` says of the character of three bytes at byte i, if it is a token of its own or belongs to none; else -1.

    A unit stands alone if nothing behind it clings to it: neither ASCII does nor U+4000 to U+9FFF.
    """
    if data[i] & 0xF0 != 0xE0 or i + 3 > end:
        return np.int64(-1)
    value = np.int64(classes[_code(data, i)])
    kind = value & CLASS
    if kind in (OTHER, SPACE):
        return value
    if kind != UNIT:
        return np.int64(-1)
    if i + 3 == end or data[i + 3] < 0x80 or 0xE4 <= data[i + 3] <= 0xE9:
        return value
    if data[i + 3] & 0xF0 == 0xE0 and i + 6 <= end and np.int64(classes[_code(data, i + 3)]) & CLASS < JOIN:
        return value
    return np.int64(-1)


@njit(cache=True, nogil=True)
def count_words(data, start, end, classes, out):
    """How many words and units a text has: what `read_words` says of them, and nothing else."""
    count = units = 0
    i = start
    while i < end:
        if data[i] < 0x80:
            starts, _, _, length = _block(data, i, end)
            count += bits(starts)
            i += length
            if length:
                continue
        value = _alone(data, i, end, classes)
        if value >= 0:
            count += value & CLASS == UNIT
            units += value & CLASS == UNIT
            i += 3
            continue
        kind, _, i = next_token(data, i, end, classes)
        if kind == END:
            break
        count += kind != SYMBOL_TOKEN
        units += kind == UNIT_TOKEN
    out[WORDS], out[UNITS] = count, units


@njit(cache=True, nogil=True)
def read_words(data, start, end, classes, scratch, stop_hashes, seen, number, out):
    """Reads the words of a text into the scratch arrays, which it returns (grown if they were too short).

    words    hash of each word; case counts
    places   where each word begins in `letters`; the end behind the last
    letters  the UTF-8 of all words, end to end
    `seen` gets the number at the slots of the stop words that stand in the text, behind which `OVERREAD` bytes can be read.
    """
    words, places, letters = scratch
    count = units = plain_words = plain_characters = alphabetic = 0
    at = np.int64(0)
    places[0] = 0
    i = start
    while i < end:
        if count + 64 >= len(words):
            words, places = _longer(words, count), _longer(places, count + 1)
        if data[i] < 0x80:
            while at + 128 > len(letters):
                letters = _longer(letters, at)
            starts, word, alphas, length = _block(data, i, end)
            found = bits(starts)
            plain_words += found
            plain_characters += bits(word)
            alphabetic += found - _without_letters(starts, word, alphas)
            while starts:
                first = lowest(starts)
                stop = first + lowest(~(word >> np.uint64(first)))
                words[count] = _take(data, i + first, i + stop, letters, at)
                _note_stop_word(words[count], stop_hashes, seen, number)
                at += stop - first
                count += 1
                places[count] = at
                starts &= starts - _ONE
            i += length
            if length:
                continue
        value = _alone(data, i, end, classes)
        if value >= 0:  # a character that is a unit, or no part of any word: most of Chinese and Japanese
            if value & CLASS == UNIT:
                while at + 3 + _LOOK > len(letters):
                    letters = _longer(letters, at)
                letters[at], letters[at + 1], letters[at + 2] = data[i], data[i + 1], data[i + 2]
                words[count] = close(absorb(SEED, _three_bytes(data, i), 0), 3)
                _note_stop_word(words[count], stop_hashes, seen, number)
                plain = value & PUNCT == 0
                at += 3
                count += 1
                places[count] = at
                units += 1
                plain_words += plain
                plain_characters += plain
                alphabetic += value & ALPHA != 0
            i += 3
            continue
        kind, first, i = next_token(data, i, end, classes)
        if kind == END:
            break
        if kind == SYMBOL_TOKEN:
            continue
        while at + i - first + _LOOK > len(letters):
            letters = _longer(letters, at)
        copy_bytes(letters, at, data, first, i - first)
        words[count] = hash_bytes(data, first, i)
        _note_stop_word(words[count], stop_hashes, seen, number)
        characters, letter, plain = _look_at(data, first, i, classes)
        at += i - first
        count += 1
        places[count] = at
        units += kind == UNIT_TOKEN
        plain_words += plain
        plain_characters += characters if plain else 0
        alphabetic += letter
    out[WORDS], out[PLAIN], out[PLAIN_CHARACTERS] = count, plain_words, plain_characters
    out[ALPHABETIC], out[UNITS] = alphabetic, units
    return words, places, letters


@njit(cache=True, nogil=True)
def _list_pairs(last, step, repeats, places):
    """Words up to `last` at which, and `step` words behind which, something repeats: into places; returns how many."""
    used = 0
    for i in range(last):
        places[used] = i
        repeats[i] &= repeats[i + step]
        used += repeats[i]
    return used


@njit(cache=True, nogil=True)
def _top_ngram(scratch, count, n, step, spaced, repeats, candidates, firsts, times, table, keys):
    """Characters that the most frequent n-gram takes (the first of them, if several), joined by spaces where spaced.

    repeats  uint8: which (n - step)-grams stand more than once, all of them where step is 0; then, which n-grams do.
             An n-gram can only if the shorter ones at its beginning and end do.
    """
    words, places, letters = scratch
    last = count - n + 1
    if last <= 0:
        return 0
    among = _list_pairs(last, step, repeats, candidates) if step else last
    mask = clear(table, among)
    used = 0
    best, at = 1, np.int64(0)
    block = np.empty(_BLOCK, np.uint64)
    for start in range(0, among, _BLOCK):
        stop = min(start + _BLOCK, among)
        for k in range(start, stop):
            i = np.int64(candidates[k]) if step else k
            gram = words[i]
            for j in range(1, n):
                gram = gram * _BASE + words[i + j]
            block[k - start] = gram
            prefetch(table, np.int64(gram & np.uint64(mask)))
        for k in range(start, stop):
            i = np.int64(candidates[k]) if step else k
            number, there = add(table, keys, mask, used, block[k - start])
            repeats[i] = there
            if there:
                times[number] += 1
                repeats[firsts[number]] = 1
            else:
                times[used], firsts[used] = 1, i
                used += 1
    for number in range(used):
        if times[number] > best:
            best, at = times[number], np.int64(firsts[number])
    return best * (_characters(letters, places[at], places[at + n]) + (n - 1) * spaced)


@njit(cache=True, nogil=True)
def _find_repeats(letters, places, count, repeats, firsts, table, keys):
    """repeats[i]: whether the 16 bytes from word i on stand at another word too, or there are fewer."""
    mask = clear(table, count)
    end = places[count]
    used = 0
    block = np.empty(_BLOCK, np.uint64)
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        for i in range(start, stop):  # 16 bytes can always be read: see `read_words`
            block[i - start] = absorb(SEED, load8(letters, places[i]), load8(letters, places[i] + 8))
            prefetch(table, np.int64(block[i - start] & np.uint64(mask)))
        for i in range(start, stop):
            if places[i] + _LOOK > end:
                repeats[i] = 1
                continue
            number, there = add(table, keys, mask, used, block[i - start])
            repeats[i] = there
            if there:
                repeats[firsts[number]] = 1
            else:
                firsts[used] = i
                used += 1


@njit(cache=True, nogil=True)
def _list_candidates(places, count, n, repeats, candidates):
    """Words that an n-gram which stands twice can begin at, into `candidates`; returns how many. Longer ones begin there too."""
    used = 0
    for i in range(count - n + 1):
        if repeats[i] or places[i + n] - places[i] < _LOOK:
            candidates[used] = i
            used += 1
    return used


@njit(cache=True, nogil=True)
def _repeated_ngrams(letters, places, count, n, repeats, candidates, table, keys):
    """Characters in n-grams that were there before, none overlapping another; n-grams are equal if their letters are."""
    if len(candidates) < 2:
        return 0
    last = count - n + 1
    mask = clear(table, len(candidates))
    characters = used = free = 0
    for i in candidates:
        if i >= last:
            break
        if i < free or not (repeats[i] or places[i + n] - places[i] < _LOOK):
            continue
        _, there = add(table, keys, mask, used, hash_bytes(letters, places[i], places[i + n]))
        if there:
            characters += _characters(letters, places[i], places[i + n])
            free = i + n
        else:
            used += 1
    return characters


@njit(cache=True, nogil=True)
def measure_ngrams(scratch, count, unspaced, repeats, ids, firsts, times, table, keys, out):
    """The statistics of n-grams. The arrays have `count` places, the table `room_for` them."""
    _, places, letters = scratch
    factor = UNITS_PER_WORD if unspaced else 1
    for k in range(_TOP_COUNT):
        n, step = factor * (_TOP_FIRST + k), factor if k else 0
        out[TOP + k] = _top_ngram(scratch, count, n, step, not unspaced, repeats, ids, firsts, times, table, keys)
    _find_repeats(letters, places, count, repeats, firsts, table, keys)
    candidates = ids[: _list_candidates(places, count, factor * _REPEATED_FIRST, repeats, ids)]
    for k in range(_REPEATED_COUNT):
        n = factor * (_REPEATED_FIRST + k)
        out[REPEATED_NGRAMS + k] = _repeated_ngrams(letters, places, count, n, repeats, candidates, table, keys)
