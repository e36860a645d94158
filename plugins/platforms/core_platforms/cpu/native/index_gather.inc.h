// Copies the chosen keys of rows of a batch side by side: blocks of 16, as attention reads them.
//
// Sixteen chosen keys come from a few groups of the cache. With vectors, a word of all keys of a group is read at once and its
// chosen lanes are moved to their places; otherwise words are copied one by one.

// The groups that sixteen chosen keys come from.
struct ChosenGroups {
    const uint8_t *from[16]; // word 0 of a group's keys
    uint32_t lanes[16];      // which of the sixteen come from there
    int32_t place[16];       // of each key within its group
    int count;
};

LANE long index_sequence(const ChosenCall &c, long row) {
    long low = 0, high = c.batch; // the last sequence that begins at the row or before
    while (high - low > 1) (c.cu_seqlens[(low + high) / 2] <= row ? low : high) = (low + high) / 2;
    return low;
}

// Word: the neighbouring numbers of a key that a product sums. Copies the keys [group, group + 16) of `chosen`; those from `count`
// on are the first one again.
template <class Word>
LANE void find_chosen(const ChosenCall &c, const int32_t *chosen, long count, long sequence, long words, ChosenGroups &g) {
    g.count = 0;
    for (long lane = 0; lane < 16; lane++) {
        const long slot = index_slot(c, sequence, chosen[lane < count ? lane : 0]), offset = slot % c.block_size;
        const uint8_t *base = c.cache + (size_t)(slot / c.block_size) * c.block_bytes;
        const uint8_t *from = base + offset / 16 * 16 * words * sizeof(Word);
        g.place[lane] = int32_t(offset % 16);
        if (g.count == 0 || g.from[g.count - 1] != from) g.from[g.count] = from, g.lanes[g.count++] = 0;
        g.lanes[g.count - 1] |= 1u << lane;
    }
}

#ifdef CORE_PICK
template <class Word> LANE I load_words(const uint8_t *p) { return sizeof(Word) == 4 ? iload(p) : load_u16((const uint16_t *)p); }

// Moves the words of G groups together: their addresses and masks stay in registers.
template <class Word, int G> static void pick_groups(const ChosenGroups &g, int first, bool adds, Word *to, long words) {
    const I place = iload(g.place);
    const uint8_t *from[G];
    uint32_t lanes[G];
    for (int i = 0; i < G; i++) from[i] = g.from[first + i], lanes[i] = g.lanes[first + i];
    for (long word = 0; word < words; word++) {
        I x = adds ? load_words<Word>((const uint8_t *)(to + word * 16)) : izero();
        for (int i = 0; i < G; i++) x = pick(x, lanes[i], load_words<Word>(from[i] + word * 16 * sizeof(Word)), place);
        if (sizeof(Word) == 4)
            istore(to + word * 16, x);
        else
            store_u16((uint16_t *)(to + word * 16), x);
    }
}

template <class Word> LANE void copy_groups(const ChosenGroups &g, Word *to, long words) {
    int done = 0;
    for (; g.count - done > 6; done += 6) pick_groups<Word, 6>(g, done, done, to, words);
    switch (g.count - done) {
    case 1: return pick_groups<Word, 1>(g, done, done, to, words);
    case 2: return pick_groups<Word, 2>(g, done, done, to, words);
    case 3: return pick_groups<Word, 3>(g, done, done, to, words);
    case 4: return pick_groups<Word, 4>(g, done, done, to, words);
    case 5: return pick_groups<Word, 5>(g, done, done, to, words);
    default: return pick_groups<Word, 6>(g, done, done, to, words);
    }
}
#else
template <class Word> LANE void copy_groups(const ChosenGroups &g, Word *to, long words) {
    const Word *from[16];
    for (int i = 0; i < g.count; i++)
        for (long lane = 0; lane < 16; lane++)
            if (g.lanes[i] >> lane & 1) from[lane] = (const Word *)g.from[i] + g.place[lane];
    for (long lane = 0; lane < 16; lane += 4) // the addresses of four keys have room in registers
        for (long word = 0; word < words; word++)
            for (long k = lane; k < lane + 4; k++) memcpy(to + word * 16 + k, from[k] + word * 16, sizeof(Word));
}
#endif

// Copies keys whose words follow one another, of blocks that 16 does not divide.
template <class Word>
LANE void copy_keys(const ChosenCall &c, const int32_t *chosen, long count, long sequence, Word *to, long words) {
    for (long lane = 0; lane < 16; lane++) {
        const long slot = index_slot(c, sequence, chosen[lane < count ? lane : 0]);
        const uint8_t *from = c.cache + (size_t)(slot / c.block_size) * c.block_bytes + slot % c.block_size * words * sizeof(Word);
        for (long word = 0; word < words; word++) memcpy(to + word * 16 + lane, from + word * sizeof(Word), sizeof(Word));
    }
}

template <class Word> static void gather_chosen(const ChosenCall &c, long row, long begin, long end, long pair) {
    const long sequence = index_sequence(c, c.first + row), words = c.dim / pair;
    const int32_t *chosen = c.chosen + (c.first + row) * c.chosen_row_stride;
    for (long group = begin; group < end && chosen[group] >= 0; group += 16) {
        long count = at_most(16, end - group);
        while (chosen[group + count - 1] < 0) count--;
        Word *to = (Word *)c.to + row * c.room * words + group * words;
        if (c.block_size % 16) {
            copy_keys<Word>(c, chosen + group, count, sequence, to, words);
            continue;
        }
        ChosenGroups g;
        find_chosen<Word>(c, chosen + group, count, sequence, words, g);
        copy_groups<Word>(g, to, words);
    }
}

static void index_gather(const ChosenCall *call, long row, long begin, long end) {
    const ChosenCall &c = *call;
    if (c.element == kCacheF32) return gather_chosen<uint32_t>(c, row, begin, end, 1);
    if (c.element == kCacheBF16) return gather_chosen<uint32_t>(c, row, begin, end, 2);
    gather_chosen<uint16_t>(c, row, begin, end, c.element == kCacheF16 ? 1 : 2);
}
