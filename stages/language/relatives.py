"""Close relatives, told apart by frequent words that one of them has and the others do not.

A model of letter n-grams sees little difference between Bosnian, Croatian and Serbian or Indonesian and Malay; their
function words, months and spellings differ (Tiedemann and Ljubešić, 2012, do it in this way). Each group also holds
languages of other scripts than usual, which the model was not trained on: Azerbaijani and Uzbek in Cyrillic, Punjabi in
Arabic letters.
"""

from __future__ import annotations

import numpy as np

from stages.text import word_hashes
from stages.text.lookup import hash_table, look_up

#: One group a block: a language (or several), then words that the others of the group write in another way or do not have.
_GROUPS = (
    {
        "hr": "tko netko nitko svatko itko što nešto tijekom tjedan tjedna tjedni tjedana tvrtka tvrtke tvrtki obitelj obitelji"
        " siječnja siječanj veljače veljača ožujka ožujak travnja travanj svibnja svibanj lipnja lipanj srpnja srpanj kolovoza"
        " kolovoz rujna rujan listopada listopad studenoga studenog studeni prosinca prosinac glede sukladno članak članka članku"
        " člankom županija županije županiji odvjetnik sveučilište sveučilišta povijest povijesti glazba glazbe kazalište znanost"
        " znanosti točno točka točke djelatnost djelatnosti tisuća tisuće tisuću uvjet uvjeti uvjete uvjetima uvjetom priopćenje"
        " vlak kruh europa europe europi europska europske europskoj europskog nazočni nogomet gospodarstvo gospodarstva izvješće"
        " natječaj natječaja hrvatska hrvatske hrvatskoj hrvatski hrvatskog hrvatskih podrijetlo skrb osobito zrakoplov računalo"
        " računala sustav sustava sustavu sustavi sustave inozemstvo inozemstva inozemstvu dohodak dohotka proračun proračuna"
        " otok otoka otoku otoci opće općeg općoj zadane zadano ispis ispisa tipkovnica zaslon poveznica napajanje postavke"
        " mrežna mrežne izbornik izborniku odaberite pritisnite kliknite računa zemljovid domovina domovine promidžba osobni osobnih",
        "bs": "hiljadu lahko mehko sahat hljeb historija historije historiji historijski bosna bosne bosni hercegovina hercegovine"
        " hercegovini bosanski bosanska bosanskog bosanskohercegovačke bošnjaci bošnjaka kantona kanton kantonu bezbjednost"
        " saopćenje juni juna juli jula august augusta sarajevo sarajeva"
        " sarajevu kahva fbih entitet entiteta dova namaz džamija džamije islam islamske allah allaha",
        "bs sr": "šta ko niko neko svako svaki hiljada hiljade porodica porodice porodicu porodici sedmica sedmice uslov"
        " uslovi uslove uslova sistem sistema sistemu sistemi januar januara februar februara mart marta april aprila maj maja"
        " septembar septembra oktobar oktobra novembar novembra decembar decembra evropa evrope evropi evropske evropska evropskoj"
        " univerzitet univerziteta opština opštine opštini učestvovati učestvuje učestvovali saopštenje takođe tačno tačka tačke"
        " nauka nauke naučni voz fudbal fudbaler ostrvo ostrva ostrvu opšte opšti uopšte obavještenje pozorište pozorišta muzika"
        " muzike hleb avion aviona sprovođenje izveštaj bašta sopstveni spisak spiska",
        "hr bs": "vrijeme vremena mjesto mjesta mjestu uvijek gdje ovdje negdje nigdje poslije prije svijet svijeta svijetu čovjek"
        " čovjeka dio dijela cijelo cijeli cijela lijep lijepo riječ riječi mjesec mjeseca dijete djeca djece djevojka tijelo"
        " tijela bijela bijeli mjera mjere primjer primjera smjer cilj liječenje lijek lijeka smije mlijeko snijeg rijeka rijeke"
        " rješenje rješenja nedjelja nedjelje posljednji posljednja sljedeći uspjeh uspješno promjena promjene izmjena vrijednost"
        " vjerojatno vjerovatno vjera vidjeti vidio htjeti živjeti bezbjednosti osigurati zahtjev zahtjeva prijedlog razumjeti"
        " utjecaj uticaj sredina ovisno između zamijeniti procjena savjet savjeti svjetski svjetskog",
        "sr": "uvek gde ovde negde nigde vreme vremenu vremenom mesto mesta mestu mestima posle pre svet svetu sveta svetski čovek"
        " čoveka čoveku deo delu delova delovi ceo celo celi cele cela lep lepo lepa reč reči rečima mesec meseca meseci dete dece"
        " deca devojka devojke telo tela bela beo beli mera mere meri primer primera primeri smer lečenje lek leka lekar sme mleko"
        " sneg reka reke reci rešenje rešenja rešiti odeljenje nedelja nedelje nedelju poslednji poslednja poslednje sledeći"
        " sledeće sledeća uspeh uspeha uspešno uspešan promena promene promenu izmena izmene vrednost vrednosti vredi verovatno"
        " vera veru videti video videla želeti želeo živeti živeo bezbednost bezbednosti obezbediti obezbeđuje obezbeđen zahtev"
        " zahteva zahtevi predlog srbija srbije srbiji srpski srpska srpske beograd beograda beogradu unapred obaveštenje"
        " obaveštenja obavestio razumeti razumevanje mešanje mešanju zameniti zamena sedište procena procene savet saveta saveti"
        " usmeren usmerena usmerenu usmereno proveriti proverite izmeniti promeniti promenite primenu primena smeštaj zavisnosti",
    },
    {
        "id": "karena bahwa yaitu bisa anda informasi perusahaan uang kantor polisi berbeda berbagai mobil sekolah gratis saat maupun"
        " secara namun hingga tersebut kebutuhan merupakan dapat dengan sangat indonesia kecamatan kabupaten provinsi jakarta jawa"
        " desa rumah sakit kamu kalian gak nggak aja banget sih dong kalo gimana bagaimana cewek cowok pria wanita sepeda kemarin"
        " januari februari maret mei juni juli agustus oktober desember rabu sabtu minggu senin kamis rp rupiah universitas"
        " aktivitas kualitas masyarakat terhadap sehingga ketika sedangkan tetapi silakan silahkan bahasa pemerintah presiden"
        " menteri gubernur bupati pengertian efek teknologi situs unduh unggah ponsel nomor hari listrik ekonomi negara",
        "ms": "kerana bahawa iaitu boleh syarikat wang pejabat polis berbeza pelbagai kereta percuma manakala ialah sahaja saja hendaklah"
        " perkhidmatan maklumat lelaki telefon semasa mereka awak beliau malaysia kuala lumpur selangor johor sabah sarawak pulau"
        " pinang perak kedah kelantan terengganu pahang melaka negeri sembilan jun julai ogos disember januari mac rabu khamis jumaat"
        " isnin selasa ahad rm ringgit universiti aktiviti kualiti kerajaan perdana menteri datuk tan sri tuan puan encik cik daripada"
        " supaya walaupun sekiranya ketika tetapi teknologi laman sesawang muat turun telah nombor elektrik ekonomi hospital kanak"
        " mahu hendak kepada setiap adakah bagaimanapun kini turut pihak sejarah pengurusan tahniah kawasan jawatan",
    },
    {
        "uz": "va bilan uchun bu bir ega har kerak oʻz o'z yoki ham emas mumkin inson huquqiga boʻlgan bo'lgan qilish uning deb lekin",
        "ug": "we bilen üchün bolghan herqandaq hemme adem hoquqi hoquqigha qilish uning dep lékin bolmaydu kérek yaki shundaq emes",
    },
    {
        "ur": "کے کی میں کو سے نے اور نہیں ہیں تھا تھی تھے گا گے گی یہ وہ اس ان کہ کا ہوں ہو پر ہی بھی کر جو تو لیے ساتھ جائے",
        "pa": "دے دی وچ نوں توں نیں ہن اے دا نال ایہ اوہ اوہدا کسے ہووے جاوے سی سن وی تے ہور لئی کیتا گیا گئی جیہڑے جیہڑا کوئی ایس",
    },
    {
        "he": "של את על לא הוא היא זה כל גם עם אל או כי אם יש אשר לכל אדם היה אני אין מן כדי שלו בין",
        "yi": "און איז די דער דאָס דאס פון פֿון האָט האט מיט צו ניט נישט אויף אין איר אויך זײַן זיין מען וואָס וואס איך ער זיך א אַ",
    },
    {
        "am": "ነው እና ላይ ወይም ግን እንደ ውስጥ ነበር አለው ጋር ሁሉ መብት ናቸው ያለው ስለ እንዲሁም አይደለም ማንኛውም ሰው ከ ወደ አንድ",
        "ti": "እዩ ኣብ ናይ እቲ ካብ ከም ነቲ መሰል ዝኾነ ሰብ ኩሉ ዘለዎ እዚ ድማ ኣሎ ወይ ኣይ ብዘይ ክሳብ እዮም ነበረ ምስ ናብ ስለ ኣለዎ",
    },
    {
        "bo": "ཡིན རེད གྱི རྣམས ཡོད ཞིག ཚང ནས ལགས གིས བྱེད",
        "dz": "ཨིན ཚུ དགོ ནིའི ཅིན དང ནི འབད ཨིནམ དེ མས སྦེ",
    },
    {
        "az": "вә бир һәр үчүн илә олан олмаг ону онун дејил олараг едилмәлидир һүгугу вардыр ја өз өзүнүн һеч",
        "uz": "ва ҳар бир учун билан бўлган бўлиши эга ҳуқуқ ҳуқуқига эга ўз унинг керак мумкин эмас қилиш ёки ҳеч шу бу",
        "tg": "ва ба дар аз ки бо барои ин он ҳар худ як аст мебошад дорад ҳуқуқ шавад набояд кас",
        "kk": "және мен үшін бар бір жоқ болып бойынша туралы керек оның бұл осы әр адам құқылы құқығы немесе",
        "ky": "жана менен үчүн бар бир жок болуп боюнча тууралуу керек анын бул ушул ар адам укугу же",
        "tt": "һәм белән өчен бар бер юк булган буенча турында кирәк аның бу шул һәр кеше хокукы яки",
        "ba": "һәм менән өсөн бар бер юҡ булған буйынса тураһында кәрәк уның был шул һәр кеше хоҡуғы йәки",
        "tk": "ве билен үчин бар бир ёк болан боюнча барада герек онуң бу шол хер адам хукугы я-да ыгтыярлыдыр",
    },
)  # fmt: skip


def _hashed(group: dict[str, str]) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray]:
    """`(languages M, hashes of the words uint64 [W], their hash table, which language has which word int64 [W, M])`."""
    members = tuple(sorted({code for codes in group for code in codes.split()}))
    owners: dict[int, set[str]] = {}
    for codes, listed in group.items():
        content = listed.encode()
        hashes, _ = word_hashes(np.frombuffer(content, np.uint8), np.array([0, len(content)]))
        for value in hashes.tolist():
            owners.setdefault(value, set()).update(codes.split())
    keys = np.array(list(owners), np.uint64)
    has_WM = np.array([[code in codes for code in members] for codes in owners.values()], np.int64)
    return members, keys, hash_table(keys), has_WM


_HASHED = [_hashed(group) for group in _GROUPS]
CODES = frozenset(code for members, *_ in _HASHED for code in members)


def settle(codes_N: np.ndarray, data_U8: np.ndarray, offsets_N1: np.ndarray) -> None:
    """Puts another language of its group in `codes_N` (objects) where a text has more words of that one than of its own.

    The answer of the model counts as one word.
    """
    for members, keys, slots, has_WM in _HASHED:
        rows = np.flatnonzero(np.isin(codes_N, members))
        if not len(rows):
            continue
        sizes = offsets_N1[rows + 1] - offsets_N1[rows]
        chosen = np.concatenate([data_U8[offsets_N1[row] : offsets_N1[row + 1]] for row in rows.tolist()])
        hashes, bounds_K1 = word_hashes(chosen, np.concatenate([[0], np.cumsum(sizes)]))
        places = look_up(hashes, keys, slots)
        row_of = np.repeat(np.arange(len(rows)), np.diff(bounds_K1))
        found = places >= 0
        counts_KM = np.zeros((len(rows), len(members)), np.int64)
        np.add.at(counts_KM, row_of[found], has_WM[places[found]])
        mine_K = np.array([members.index(code) for code in codes_N[rows].tolist()])
        own = (np.arange(len(rows)), mine_K)
        counts_KM[own] += 1
        better = counts_KM.max(axis=1) > counts_KM[own]
        codes_N[rows[better]] = np.array(members, object)[counts_KM.argmax(axis=1)[better]]
