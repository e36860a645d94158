// Operations on logits between the head and the sampler.

static void soft_cap_rows(const RowsCall *c, long begin, long end) {
    for (long row = begin; row < end; row++) {
        float *out = c->out + row * c->out_stride;
        for (long i = 0; i < c->width; i += 16) {
            long n = c->width - i;
            store_upto(out + i, soft_cap(load_upto(out + i, n), c->factor), n);
        }
    }
}
