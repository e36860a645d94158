// The Python module `_native`: argument lists of integers, pointers and floats in, kernels called with the GIL released.
//
// Nothing is checked here but the number of arguments and the indices named below: the Python bindings (kernels.py, experts.py,
// the paged attention's backend.py) own shapes and types. Indices come from these places:
//   rows of embeddings (linear_rows)      token ids, which requests and drafters choose: checked here, IndexError
//   rows of adapters' tables (low_rank)   the executor, which places adapters: its own invariant
//   experts                               a router, which may be a plugin: checked here, IndexError
//   rows of logits (race)                 the sampler: checked in kernels.py
//   slots, block tables, sequence starts  the persistent batch, from blocks of the block pool: its own invariants, which
//                                         `check_integrity` verifies; a negative slot stores nothing
//   positions (rotary)                    the persistent batch: below max_model_len + drafts, for which the tables are made
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdlib.h>

#include <initializer_list>

#include "native.h"
#include "attention_parts.h"
#include "pool.h"
#include "prefault.h"
#include "ranks.h"
#include "tape.h"

namespace {

const char kCapsule[] = "core_platforms.cpu._native.linear";
const char kTapeCapsule[] = "core_platforms.cpu._native.tape";
const char kStateCapsule[] = "core_platforms.cpu._native.state";
const char kRanksCapsule[] = "core_platforms.cpu._native.ranks";
const char kExpertsCapsule[] = "core_platforms.cpu._native.experts";

// Reads arguments one by one; at the end `ok` is true if all were present and readable.
class Arguments {
  public:
    Arguments(PyObject *const *items, Py_ssize_t count, Py_ssize_t expected) : items_(items), left_(count) {
        if (count == expected) return;
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", expected, count);
        failed_ = true;
    }
    PyObject *object() { return failed_ || left_ == 0 ? nullptr : (left_--, *items_++); }
    long integer() {
        PyObject *item = object();
        long value = item ? PyLong_AsLong(item) : 0;
        if (value == -1 && PyErr_Occurred()) failed_ = true;
        return value;
    }
    template <class T> T *pointer() {
        PyObject *item = object();
        void *value = item ? PyLong_AsVoidPtr(item) : nullptr;
        if (!value && PyErr_Occurred()) failed_ = true;
        return (T *)value;
    }
    float real() {
        PyObject *item = object();
        double value = item ? PyFloat_AsDouble(item) : 0;
        if (value == -1 && PyErr_Occurred()) failed_ = true;
        return (float)value;
    }
    PackedLinear *linear() {
        PyObject *item = object();
        PackedLinear *value = item ? (PackedLinear *)PyCapsule_GetPointer(item, kCapsule) : nullptr;
        if (!value) failed_ = true;
        return value;
    }
    ActivationSpec activation() {
        ActivationSpec value = {};
        value.kind = (int)integer();
        for (float &number : value.numbers) number = real();
        return value;
    }
    Ranks *ranks() {
        PyObject *item = object();
        Ranks *value = item ? (Ranks *)PyCapsule_GetPointer(item, kRanksCapsule) : nullptr;
        if (!value) failed_ = true;
        return value;
    }
    const PackedLinear *linear_or_none() {
        if (left_ > 0 && *items_ == Py_None) return object(), nullptr;
        return linear();
    }
    bool ok() const { return !failed_; }

  private:
    PyObject *const *items_;
    Py_ssize_t left_;
    bool failed_ = false;
};

PyObject *none() {
    Py_INCREF(Py_None);
    return Py_None;
}

PyObject *raise(Status status) {
    if (status == kNoMemory) return PyErr_NoMemory();
    if (status == kAborted) return PyErr_Format(PyExc_RuntimeError, "another rank gave this step up");
    if (status == kBroken) return PyErr_Format(PyExc_RuntimeError, "the ranks have ended");
    if (status == kLate) return PyErr_Format(PyExc_TimeoutError, "another rank did not answer in time");
    PyErr_SetString(PyExc_IndexError, "a token id names no row of the embedding");
    return nullptr;
}

// Restricts a recorded call to some rows (attention: to the first sequences).
void select_rows(LinearRun &c, long first, long count) {
    c.x += first * c.x_stride, c.out += first * c.out_stride, c.rows = count;
}
void select_rows(GatherCall &c, long first, long count) { c.ids += first, c.out += first * c.out_stride, c.rows = count; }
void select_rows(TakeCall &c, long first, long count) { c.which += first, c.out += first * c.out_stride, c.rows = count; }
void select_rows(NormCall &c, long first, long count) {
    c.x += first * c.row_stride, c.out += first * c.out_row_stride, c.rows = count;
}
void select_rows(RotaryCall &c, long first, long count) {
    c.x += first * c.row_stride, c.positions += first, c.rows = count;
}
void select_rows(RowsCall &c, long first, long count) {
    c.x += first * c.x_stride, c.out += first * c.out_stride, c.rows = count;
}
void select_rows(CacheWriteCall &c, long first, long count) {
    c.k += first * c.k_row_stride, c.v += first * c.v_row_stride, c.slots += first, c.rows = count;
}
void select_rows(RouteCall &c, long first, long count) {
    c.logits += first * c.stride, c.ids += first * c.top_k, c.weights += first * c.top_k, c.rows = count;
}
void select_rows(ExpertsCall &c, long first, long count) {
    c.x += first * c.x_stride, c.out += first * c.out_stride, c.ids += first * c.top_k, c.weights += first * c.top_k;
    c.rows = count;
}
void select_rows(PlaceCall &c, long first, long count) {
    c.ids += first * c.top_k, c.slots += first * c.top_k, c.rows = count;
}
void select_rows(CombineCall &c, long first, long count) {
    c.y += first * c.top_k * c.width, c.ids += first * c.top_k, c.out += first * c.out_stride, c.rows = count;
    if (c.weights) c.weights += first * c.top_k;
}
void select_rows(LowRankCall &c, long first, long count) {
    c.x += first * c.x_stride, c.out += first * c.out_stride, c.which += first, c.rows = count;
}
void select_rows(JoinedRun &c, long first, long count) {
    select_rows(c.linear, first, count);
    select_rows(c.updates, first, count);
    c.rows = count;
}
void select_rows(RaceCall &c, long first, long count) {
    c.which += first, c.keys += 5 * first, c.temperatures += first, c.out += first, c.rows = count;
    if (c.top_k) c.top_k += first, c.top_p += first, c.least += first;
    if (c.mask_rows) c.mask_rows += first;
}
void select_rows(LogprobsCall &c, long first, long count) {
    c.which += first, c.chosen += first, c.counts += first, c.rows = count;
    c.ids += first * c.width, c.values += first * c.width, c.ranks += first;
}
void select_rows(SumCall &c, long first, long count) { c.x += first * c.x_stride, c.rows = count; }
void select_rows(GatherPartsCall &c, long first, long count) {
    c.x += first * c.x_stride, c.out += first * c.out_stride, c.rows = count;
}
void select_rows(AttentionCall &c, long, long count) { c.batch = count; }
void select_rows(StateCall &c, long, long count) { c.batch = count; }

// Converts the result of `Run` to a status; a result of false means `Failure`.
template <auto Run, Status Failure> struct Operation {
    template <class Call> static Status run(void (*function)(const Call &), const Call &call) {
        function(call);
        return kDone;
    }
    template <class Call> static Status run(Status (*function)(const Call &), const Call &call) { return function(call); }
    template <class Call> static Status run(bool (*function)(const Call &), const Call &call) {
        return function(call) ? kDone : Failure;
    }
    template <class Call> static Status replay(const void *memory, long first, long count) {
        Call call = *(const Call *)memory;
        select_rows(call, first, count);
        return run(Run, call);
    }
    template <class Call> static void record(const Call &call) {
        tape_record(replay<Call>, &call, sizeof(call), call.rows, kRowsApart);
    }
    // Neighbouring tokens share words of the cache, so rows cannot run concurrently in parts.
    static void record(const CacheWriteCall &call) {
        tape_record(replay<CacheWriteCall>, &call, sizeof(call), call.rows, kRowsTogether);
    }
    // Tokens of one expert share its weights, so splitting rows would read them several times.
    static void record(const ExpertsCall &call) {
        tape_record(replay<ExpertsCall>, &call, sizeof(call), call.rows, kRowsTogether);
    }
    // Which copy of an expert computes a choice depends on the rows before.
    static void record(const PlaceCall &call) {
        tape_record(replay<PlaceCall>, &call, sizeof(call), call.rows, kRowsTogether);
    }
    // All rows at once, in the same order on all ranks.
    static void record(const SumCall &call) {
        tape_record(replay<SumCall>, &call, sizeof(call), call.rows, kRowsTogether);
    }
    static void record(const GatherPartsCall &call) {
        tape_record(replay<GatherPartsCall>, &call, sizeof(call), call.rows, kRowsTogether);
    }
    static void record(const AttentionCall &call) {
        tape_record(replay<AttentionCall>, &call, sizeof(call), call.batch, kSequences);
    }
    static void record(const StateCall &call) {
        tape_record(replay<StateCall>, &call, sizeof(call), call.batch, kSequences);
    }
};

// Records the call while a tape is being made, and runs it with the GIL released.
template <auto Run, Status Failure = kNoMemory, class Call> PyObject *perform(const Call &call) {
    if (tape_recording()) Operation<Run, Failure>::record(call);
    Status status;
    Py_BEGIN_ALLOW_THREADS;
    status = Operation<Run, Failure>::run(Run, call);
    Py_END_ALLOW_THREADS;
    return status == kDone ? none() : raise(status);
}

#define KERNEL(NAME) PyObject *NAME(PyObject *, PyObject *const *items, Py_ssize_t count)

KERNEL(py_isa) { return (void)items, (void)count, PyUnicode_FromString(kernels_active()->name); }

PyObject *table_names(const KernelTable *(*at)(int)) {
    PyObject *list = PyList_New(0);
    for (int i = 0; const KernelTable *table = list ? at(i) : nullptr; i++) {
        PyObject *name = PyUnicode_FromString(table->name);
        if (!name || PyList_Append(list, name) != 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

KERNEL(py_isas) { return (void)items, (void)count, table_names(kernels_at); }

KERNEL(py_compiled_isas) { return (void)items, (void)count, table_names(kernels_compiled); }

KERNEL(py_set_isa) {
    Arguments a(items, count, 1);
    PyObject *name = a.object();
    PyObject *bytes = name ? PyUnicode_AsUTF8String(name) : nullptr;
    if (!bytes) return nullptr;
    bool found = kernels_select(PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    if (found) return none();
    return PyErr_Format(PyExc_ValueError, "instruction set %R does not run here; isas() lists those that do", name);
}

KERNEL(py_pool_init) {
    Arguments a(items, count, 1);
    long threads = a.integer(), running = 0;
    if (!a.ok()) return nullptr;
    Py_BEGIN_ALLOW_THREADS;
    running = pool_init(threads);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(running);
}

KERNEL(py_pool_spin) {
    Arguments a(items, count, 1);
    const long microseconds = a.integer();
    return a.ok() ? (pool_spin(microseconds), none()) : nullptr;
}

KERNEL(py_pool_bind) { // processors: one per pool thread, without the caller's
    Arguments a(items, count, 1);
    PyObject *list = a.object();
    const Py_ssize_t size = list ? PyList_Size(list) : -1;
    int *processors = size < 0 ? nullptr : (int *)malloc((size + 1) * sizeof(int));
    if (!processors) return PyErr_Occurred() ? nullptr : PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < size; i++) processors[i] = (int)PyLong_AsLong(PyList_GetItem(list, i));
    const bool bound = !PyErr_Occurred() && pool_bind(processors, (long)size);
    free(processors);
    return PyErr_Occurred() ? nullptr : PyBool_FromLong(bound);
}

KERNEL(py_pool_size) { return (void)items, (void)count, PyLong_FromLong(pool_size()); }

void destroy(PyObject *capsule) { free_linear((PackedLinear *)PyCapsule_GetPointer(capsule, kCapsule)); }

KERNEL(py_linear_pack) {
    Arguments a(items, count, 24);
    PackSource s = {};
    s.format = (int)a.integer(), s.activation = (int)a.integer(), s.n = a.integer(), s.k = a.integer();
    s.group = a.integer(), s.super = a.integer(), s.zero = (int)a.integer(), s.scale_type = (int)a.integer();
    s.segments = a.integer(), s.input_group = a.integer();
    s.values = a.pointer<void>(), s.scale = a.pointer<void>(), s.minimum = a.pointer<void>();
    s.zeros = a.pointer<uint8_t>(), s.order = a.pointer<int32_t>();
    s.codes = a.pointer<float>(), s.row_scale = a.pointer<float>();
    s.high = a.pointer<void>(), s.sub_scale = a.pointer<void>(), s.sub_minimum = a.pointer<void>();
    s.bias = a.pointer<float>();
    s.into = a.pointer<uint8_t>();
    s.layout = (int)a.integer(), s.rows = a.pointer<const uint8_t *const>();
    if (!a.ok()) return nullptr;
    PackedLinear *linear = nullptr;
    bool fits = true;
    Py_BEGIN_ALLOW_THREADS;
    linear = pack_linear(&s, &fits);
    if (linear && !fits) free_linear(linear);
    Py_END_ALLOW_THREADS;
    if (linear && !fits) return PyErr_Format(PyExc_ValueError, "rows of another layout, or with scales that are not finite");
    return linear ? PyCapsule_New(linear, kCapsule, destroy) : PyErr_NoMemory();
}

// weight, rule, mantissa, exponent, zero, group, largest, least, per_step, scale, bound, floor: see InputRounding. Before the
// weight's first product.
KERNEL(py_linear_round) {
    Arguments a(items, count, 12);
    PackedLinear *linear = a.linear();
    InputRounding r = {};
    r.rule = (int)a.integer(), r.mantissa = (int)a.integer(), r.exponent = (int)a.integer(), r.zero = (int)a.integer();
    r.group = a.integer(), r.largest = a.real(), r.least = a.real(), r.per_step = a.real(), r.scale = a.real();
    r.bound = a.real(), r.floor = a.real();
    if (!a.ok()) return nullptr;
    linear->rounding = r;
    return none();
}

// Format, n, k, group, super, scale_type; whether: minimum, zeros, sub_scale, sub_minimum.
KERNEL(py_linear_prepared_bytes) {
    Arguments a(items, count, 10);
    PackSource s = {};
    s.format = (int)a.integer(), s.n = a.integer(), s.k = a.integer(), s.group = a.integer(), s.super = a.integer();
    s.scale_type = (int)a.integer(), s.minimum = a.integer() ? &s : nullptr;
    s.zeros = a.integer() ? (const uint8_t *)&s : nullptr;
    s.sub_scale = a.integer() ? &s : nullptr, s.sub_minimum = a.integer() ? &s : nullptr;
    return a.ok() ? PyLong_FromSize_t(prepared_bytes(&s)) : nullptr;
}

KERNEL(py_linear_bytes) {
    Arguments a(items, count, 1);
    PackedLinear *linear = a.linear();
    if (!a.ok()) return nullptr;
    size_t row_bytes = linear->row_scale ? kPanel * sizeof(float) : 0;
    size_t order_bytes = linear->order ? linear->k * sizeof(int32_t) : 0;
    return PyLong_FromSize_t((linear->panel_bytes + row_bytes) * linear->panels + order_bytes);
}

KERNEL(py_linear) { // weight, x, x_stride, rows, out, out_stride, accumulate
    Arguments a(items, count, 7);
    LinearRun c = {};
    c.weight = a.linear(), c.x = a.pointer<float>(), c.x_stride = a.integer(), c.rows = a.integer();
    c.out = a.pointer<float>(), c.out_stride = a.integer(), c.accumulate = (int)a.integer();
    return a.ok() ? perform<run_linear>(c) : nullptr;
}

// weight, x, x_stride, rows, out, out_stride, activation: its kind and four numbers
template <int LinearRun::*Form> PyObject *linear_and_activation(PyObject *const *items, Py_ssize_t count) {
    Arguments a(items, count, 11);
    LinearRun c = {};
    c.weight = a.linear(), c.x = a.pointer<float>(), c.x_stride = a.integer(), c.rows = a.integer();
    c.out = a.pointer<float>(), c.out_stride = a.integer(), c.*Form = 1, c.activation = a.activation();
    return a.ok() ? perform<run_linear>(c) : nullptr;
}

KERNEL(py_linear_gated) { return linear_and_activation<&LinearRun::gated>(items, count); }
KERNEL(py_linear_activated) { return linear_and_activation<&LinearRun::activated>(items, count); }

KERNEL(py_linear_rows) { // weight, ids, count, out, out_stride, first, whole
    Arguments a(items, count, 7);
    GatherCall c = {};
    c.weight = a.linear(), c.ids = a.pointer<int64_t>(), c.rows = a.integer();
    c.out = a.pointer<float>(), c.out_stride = a.integer(), c.first = a.integer(), c.whole = a.integer();
    if (!a.ok()) return nullptr;
    long missing = missing_row(c);
    if (missing < 0) return perform<run_gather, kNoRow>(c);
    return PyErr_Format(PyExc_IndexError, "row %lld of a weight with %ld rows", (long long)c.ids[missing],
                        c.whole ? c.whole : c.weight->n);
}

KERNEL(py_take_rows) { // x, x_stride, which, count, out, out_stride, width
    Arguments a(items, count, 7);
    TakeCall c = {};
    c.x = a.pointer<float>(), c.x_stride = a.integer(), c.which = a.pointer<int64_t>(), c.rows = a.integer();
    c.out = a.pointer<float>(), c.out_stride = a.integer(), c.width = a.integer();
    return a.ok() ? perform<run_take>(c) : nullptr;
}

// x, row_stride, head_stride, out, row_stride, head_stride, weight, eps, rows, heads, width, weight_stride, bias, centred
KERNEL(py_norm) {
    Arguments a(items, count, 14);
    NormCall c = {};
    c.x = a.pointer<float>(), c.row_stride = a.integer(), c.head_stride = a.integer();
    c.out = a.pointer<float>(), c.out_row_stride = a.integer(), c.out_head_stride = a.integer();
    c.weight = a.pointer<float>(), c.eps = a.real();
    c.rows = a.integer(), c.heads = a.integer(), c.width = a.integer();
    c.weight_stride = a.integer(), c.bias = a.pointer<float>(), c.centred = (int)a.integer();
    return a.ok() ? perform<run_norm>(c) : nullptr;
}

KERNEL(py_rotary) { // x, row_stride, head_stride, rows, heads, half, cos, sin, positions
    Arguments a(items, count, 9);
    RotaryCall c = {};
    c.x = a.pointer<float>(), c.row_stride = a.integer(), c.head_stride = a.integer();
    c.rows = a.integer(), c.heads = a.integer(), c.half = a.integer();
    c.cos = a.pointer<float>(), c.sin = a.pointer<float>(), c.positions = a.pointer<int64_t>();
    return a.ok() ? perform<run_rotary>(c) : nullptr;
}

template <void (*Run)(const RowsCall &)> PyObject *rows_call(PyObject *const *items, Py_ssize_t count) {
    Arguments a(items, count, 7); // x, x_stride, out, out_stride, rows, width, factor
    RowsCall c = {};
    c.x = a.pointer<float>(), c.x_stride = a.integer(), c.out = a.pointer<float>(), c.out_stride = a.integer();
    c.rows = a.integer(), c.width = a.integer(), c.factor = a.real();
    return a.ok() ? perform<Run>(c) : nullptr;
}

// x, x_stride, out, out_stride, rows, width, activation: its kind and four numbers
template <void (*Run)(const RowsCall &)> PyObject *active_call(PyObject *const *items, Py_ssize_t count) {
    Arguments a(items, count, 11);
    RowsCall c = {};
    c.x = a.pointer<float>(), c.x_stride = a.integer(), c.out = a.pointer<float>(), c.out_stride = a.integer();
    c.rows = a.integer(), c.width = a.integer(), c.activation = a.activation();
    return a.ok() ? perform<Run>(c) : nullptr;
}

KERNEL(py_gated) { return active_call<run_gated>(items, count); }
KERNEL(py_activate) { return active_call<run_activate>(items, count); }
KERNEL(py_add) { return rows_call<run_add>(items, count); }
KERNEL(py_open_gate) { return rows_call<run_open_gate>(items, count); }
KERNEL(py_scale) { return rows_call<run_scale>(items, count); }
KERNEL(py_soft_cap) { return rows_call<run_soft_cap>(items, count); }

// logits, stride, vocab, rows, which, keys, temperatures, top_k, top_p, least, masks, mask_rows, mask_words, out
KERNEL(py_race) {
    Arguments a(items, count, 14);
    RaceCall c = {};
    c.logits = a.pointer<float>(), c.stride = a.integer(), c.vocab = a.integer(), c.rows = a.integer();
    c.which = a.pointer<int64_t>(), c.keys = a.pointer<int64_t>(), c.temperatures = a.pointer<float>();
    c.top_k = a.pointer<int64_t>(), c.top_p = a.pointer<double>(), c.least = a.pointer<float>();
    c.masks = a.pointer<uint32_t>(), c.mask_rows = a.pointer<int64_t>(), c.mask_words = a.integer();
    c.out = a.pointer<int64_t>();
    return a.ok() ? perform<run_race>(c) : nullptr;
}

// logits, stride, experts, rows, top_k, scores, renormalize, epsilon, jitter, groups, top_groups, pair_groups, factor, bias,
// ids, weights
KERNEL(py_route) {
    Arguments a(items, count, 16);
    RouteCall c = {};
    c.logits = a.pointer<float>(), c.stride = a.integer(), c.experts = a.integer(), c.rows = a.integer();
    c.top_k = a.integer(), c.scores = (int)a.integer(), c.renormalize = (int)a.integer();
    c.epsilon = a.real(), c.jitter = a.real();
    c.groups = a.integer(), c.top_groups = a.integer(), c.pair_groups = (int)a.integer(), c.factor = a.real();
    c.bias = a.pointer<float>(), c.ids = a.pointer<int64_t>(), c.weights = a.pointer<float>();
    if (!a.ok()) return nullptr;
    return perform<run_route>(c);
}

void destroy_experts(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, kExpertsCapsule)); }

// The largest power of two of equal ranges of experts, up to `most`.
long ranges_of(long experts, long most) {
    long ranges = 1;
    while (2 * ranges <= at_most(most, long(kCombineRanges)) && experts % (2 * ranges) == 0) ranges *= 2;
    return ranges;
}

// gate_up, down: lists of as many weights, which the caller keeps alive; plain, weight_inputs, partial, own inputs, most
// ranges, activation: its kind and numbers
KERNEL(py_experts_pack) {
    Arguments a(items, count, 12);
    PyObject *lists[2] = {a.object(), a.object()};
    const int plain = (int)a.integer(), weight_inputs = (int)a.integer(), partial = (int)a.integer();
    const int own_inputs = (int)a.integer();
    const long most_ranges = a.integer();
    const ActivationSpec activation = a.activation();
    if (!a.ok()) return nullptr;
    const Py_ssize_t experts = PyList_Size(lists[0]);
    if (experts < 1 || PyList_Size(lists[1]) != experts)
        return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_ValueError, "expected two equally long lists of weights");
    ExpertsLayer *layer = (ExpertsLayer *)malloc(sizeof(ExpertsLayer) + 2 * experts * sizeof(PackedLinear *));
    if (!layer) return PyErr_NoMemory();
    const PackedLinear **weights = (const PackedLinear **)(layer + 1);
    const long ranges = ranges_of(experts, most_ranges);
    *layer = {experts, activation, plain, weight_inputs, partial, own_inputs, ranges, weights, weights + experts};
    for (Py_ssize_t i = 0; i < 2 * experts; i++) {
        PyObject *item = PyList_GetItem(lists[i / experts], i % experts);
        weights[i] = item ? (const PackedLinear *)PyCapsule_GetPointer(item, kCapsule) : nullptr;
        if (!weights[i]) return free(layer), nullptr;
    }
    return PyCapsule_New(layer, kExpertsCapsule, destroy_experts);
}

KERNEL(py_experts) { // layer, x, x_stride, rows, top_k, ids, weights, out, out_stride, accumulate, apart
    Arguments a(items, count, 11);
    PyObject *capsule = a.object();
    ExpertsCall c = {};
    c.layer = capsule ? (ExpertsLayer *)PyCapsule_GetPointer(capsule, kExpertsCapsule) : nullptr;
    c.x = a.pointer<float>(), c.x_stride = a.integer(), c.rows = a.integer(), c.top_k = a.integer();
    c.ids = a.pointer<int64_t>(), c.weights = a.pointer<float>();
    c.out = a.pointer<float>(), c.out_stride = a.integer(), c.accumulate = (int)a.integer();
    c.apart = (int)a.integer();
    if (!c.layer || !a.ok()) return nullptr;
    const int64_t least = c.layer->partial ? -1 : 0;
    for (long i = 0; i < c.rows * c.top_k; i++)
        if (c.ids[i] < least || c.ids[i] >= c.layer->experts)
            return PyErr_Format(PyExc_IndexError, "expert %lld of %ld", (long long)c.ids[i], c.layer->experts);
    return perform<run_experts>(c);
}

// layer, slot, gate_up, down: puts other weights, which the caller keeps alive, in an expert's place
KERNEL(py_experts_replace) {
    Arguments a(items, count, 4);
    PyObject *capsule = a.object();
    ExpertsLayer *layer = capsule ? (ExpertsLayer *)PyCapsule_GetPointer(capsule, kExpertsCapsule) : nullptr;
    const long slot = a.integer();
    const PackedLinear *gate_up = a.linear(), *down = a.linear();
    if (!layer || !a.ok()) return nullptr;
    if (slot < 0 || slot >= layer->experts) return PyErr_Format(PyExc_IndexError, "expert %ld of %ld", slot, layer->experts);
    layer->gate_up[slot] = gate_up, layer->down[slot] = down;
    return none();
}

KERNEL(py_experts_place) { // ids, table, experts, columns, rows, top_k, per_rank, rank, loads, slots
    Arguments a(items, count, 10);
    PlaceCall c = {};
    c.ids = a.pointer<int64_t>(), c.table = a.pointer<int32_t>();
    const long experts = a.integer();
    c.columns = a.integer(), c.rows = a.integer(), c.top_k = a.integer(), c.per_rank = a.integer(), c.rank = a.integer();
    c.loads = a.pointer<int64_t>(), c.slots = a.pointer<int64_t>();
    if (!a.ok()) return nullptr;
    for (long i = 0; i < c.rows * c.top_k; i++)
        if (c.ids[i] < 0 || c.ids[i] >= experts)
            return PyErr_Format(PyExc_IndexError, "expert %lld of %ld", (long long)c.ids[i], experts);
    return perform<run_place>(c);
}

KERNEL(py_experts_combine) { // y, width, rows, top_k, ids, weights, experts, out, out_stride, accumulate
    Arguments a(items, count, 10);
    CombineCall c = {};
    c.y = a.pointer<float>(), c.width = a.integer(), c.rows = a.integer(), c.top_k = a.integer();
    c.ids = a.pointer<int64_t>(), c.weights = a.pointer<float>();
    const long experts = a.integer();
    c.ranges = ranges_of(experts, kCombineRanges), c.range = experts / c.ranges;
    c.out = a.pointer<float>(), c.out_stride = a.integer(), c.accumulate = (int)a.integer();
    return a.ok() ? perform<run_combine>(c) : nullptr;
}

KERNEL(py_logprobs) { // logits, stride, vocab, rows, width, which, chosen, counts, ids, values, ranks
    Arguments a(items, count, 11);
    LogprobsCall c = {};
    c.logits = a.pointer<float>(), c.stride = a.integer(), c.vocab = a.integer(), c.rows = a.integer();
    c.width = a.integer(), c.which = a.pointer<int64_t>(), c.chosen = a.pointer<int64_t>();
    c.counts = a.pointer<int64_t>(), c.ids = a.pointer<int64_t>(), c.values = a.pointer<double>();
    c.ranks = a.pointer<int64_t>();
    return a.ok() ? perform<run_logprobs>(c) : nullptr;
}

void read_shape(Arguments &a, CacheShape &c) {
    c.heads_kv = a.integer(), c.dim = a.integer(), c.dim_v = a.integer(), c.block_size = a.integer();
    c.block_bytes = a.integer(), c.head_bytes = a.integer(), c.element = (int)a.integer(), c.scaled = (int)a.integer();
    c.k_scale = a.real(), c.v_scale = a.real();
}

void read_latent_shape(Arguments &a, CacheShape &c) { // one head, whose values are a part of its keys
    c.heads_kv = 1, c.latent = 1;
    c.dim = a.integer(), c.dim_v = a.integer(), c.block_size = a.integer();
    c.block_bytes = a.integer(), c.element = (int)a.integer();
    c.k_scale = c.v_scale = a.real();
}

// k, row and head stride, v, row and head stride, cache, slots, rows, heads, dim, dim_v, block_size, block_bytes,
// head_bytes, element, scaled, k_scale, v_scale
KERNEL(py_cache_write) {
    Arguments a(items, count, 19);
    CacheWriteCall c = {};
    c.k = a.pointer<float>(), c.k_row_stride = a.integer(), c.k_head_stride = a.integer();
    c.v = a.pointer<float>(), c.v_row_stride = a.integer(), c.v_head_stride = a.integer();
    c.cache = a.pointer<uint8_t>(), c.slots = a.pointer<int64_t>();
    c.rows = a.integer();
    read_shape(a, c);
    return a.ok() ? perform<run_cache_write>(c) : nullptr;
}

// q, row and head stride, out, row and head stride, cu_seqlens, seq_lens, block_table, table_stride, batch,
// cache, heads_q, heads_kv, dim, dim_v, block_size, block_bytes, head_bytes, element, scaled, k_scale, v_scale, scale, cap,
// window, ahead, sinks, slopes, tails, tail_depth, sees_to
KERNEL(py_attention) {
    Arguments a(items, count, 32);
    AttentionCall c = {};
    c.q = a.pointer<float>(), c.q_row_stride = a.integer(), c.q_head_stride = a.integer();
    c.out = a.pointer<float>(), c.out_row_stride = a.integer(), c.out_head_stride = a.integer();
    c.cu_seqlens = a.pointer<int32_t>(), c.seq_lens = a.pointer<int32_t>(), c.block_table = a.pointer<int32_t>();
    c.table_stride = a.integer(), c.batch = a.integer(), c.cache = a.pointer<uint8_t>();
    c.heads_q = a.integer();
    read_shape(a, c);
    c.scale = a.real(), c.cap = a.real(), c.window = a.integer(), c.ahead = a.integer();
    c.sinks = a.pointer<float>(), c.slopes = a.pointer<float>();
    c.tails = a.pointer<int32_t>(), c.tail_depth = a.integer(), c.sees_to = a.pointer<int32_t>();
    return a.ok() ? perform<run_attention>(c) : nullptr;
}

void destroy_state(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, kStateCapsule)); }

// op, window_element, element, channels, kernel, heads, rows, length, key_heads, groups, rank, gate_rank, norm, norm_groups, norm_eps, qk_eps, beta_scale,
// dt_min, dt_max, z_scale, dt_scale, decay_floor, taps, bias, rate, dt_bias, skip, norm_weight, b_weight, c_weight, first, second:
// weights, which the caller keeps alive, or None
KERNEL(py_state_pack) {
    Arguments a(items, count, 32);
    StateLayer l = {};
    l.op = (int)a.integer(), l.window_element = (int)a.integer(), l.element = (int)a.integer();
    l.channels = a.integer(), l.kernel = a.integer();
    l.heads = a.integer(), l.rows = a.integer(), l.length = a.integer();
    l.key_heads = a.integer(), l.groups = a.integer(), l.rank = a.integer(), l.gate_rank = a.integer();
    l.norm = (int)a.integer(), l.norm_groups = a.integer();
    for (float *number : {&l.norm_eps, &l.qk_eps, &l.beta_scale, &l.dt_min, &l.dt_max, &l.z_scale, &l.dt_scale, &l.decay_floor})
        *number = a.real();
    for (const float **table : {&l.taps, &l.bias, &l.rate, &l.dt_bias, &l.skip, &l.norm_weight, &l.b_weight, &l.c_weight})
        *table = a.pointer<float>();
    l.first = a.linear_or_none(), l.second = a.linear_or_none();
    if (!a.ok()) return nullptr;
    StateLayer *layer = (StateLayer *)malloc(sizeof l);
    if (!layer) return PyErr_NoMemory();
    *layer = l;
    return PyCapsule_New(layer, kStateCapsule, destroy_state);
}

// layer, x, x_stride, out, out_stride, raw, block_bytes, cu_seqlens, seq_lens, block_table, table_stride, batch, sources
KERNEL(py_state) {
    Arguments a(items, count, 13);
    PyObject *capsule = a.object();
    StateCall c = {};
    c.layer = capsule ? (StateLayer *)PyCapsule_GetPointer(capsule, kStateCapsule) : nullptr;
    c.x = a.pointer<float>(), c.x_stride = a.integer(), c.out = a.pointer<float>(), c.out_stride = a.integer();
    c.raw = a.pointer<uint8_t>(), c.block_bytes = a.integer();
    c.cu_seqlens = a.pointer<int32_t>(), c.seq_lens = a.pointer<int32_t>(), c.block_table = a.pointer<int32_t>();
    c.table_stride = a.integer(), c.batch = a.integer(), c.sources = a.pointer<int32_t>();
    return c.layer && a.ok() ? perform<run_state>(c) : nullptr;
}

// c, row stride, k_pe, row stride, cache, slots, rows, dim, dim_v, block_size, block_bytes, element, scale
KERNEL(py_latent_write) {
    Arguments a(items, count, 13);
    CacheWriteCall c = {};
    c.k = a.pointer<float>(), c.k_row_stride = a.integer();
    c.v = a.pointer<float>(), c.v_row_stride = a.integer();
    c.cache = a.pointer<uint8_t>(), c.slots = a.pointer<int64_t>();
    c.rows = a.integer();
    read_latent_shape(a, c);
    return a.ok() ? perform<run_cache_write>(c) : nullptr;
}

// q_latent, row and head stride, q_pe, row and head stride, out, row and head stride, cu_seqlens, seq_lens, block_table,
// table_stride, batch, cache, heads_q, dim, dim_v, block_size, block_bytes, element, k_scale, scale, tails, tail_depth
KERNEL(py_latent_attention) {
    Arguments a(items, count, 25);
    AttentionCall c = {};
    c.q = a.pointer<float>(), c.q_row_stride = a.integer(), c.q_head_stride = a.integer();
    c.q_pe = a.pointer<float>(), c.pe_row_stride = a.integer(), c.pe_head_stride = a.integer();
    c.out = a.pointer<float>(), c.out_row_stride = a.integer(), c.out_head_stride = a.integer();
    c.cu_seqlens = a.pointer<int32_t>(), c.seq_lens = a.pointer<int32_t>(), c.block_table = a.pointer<int32_t>();
    c.table_stride = a.integer(), c.batch = a.integer(), c.cache = a.pointer<uint8_t>();
    c.heads_q = a.integer();
    read_latent_shape(a, c);
    c.scale = a.real();
    c.tails = a.pointer<int32_t>(), c.tail_depth = a.integer();
    return a.ok() ? perform<run_attention>(c) : nullptr;
}

// Reads what both calls of attention over parts have in common: latent, then as in the calls of whole attention: cu_seqlens,
// seq_lens, batch, heads_q, and the shape.
void read_parts(Arguments &a, AttentionCall &c) {
    const bool latent = a.integer() != 0;
    c.cu_seqlens = a.pointer<int32_t>(), c.seq_lens = a.pointer<int32_t>(), c.batch = a.integer(), c.heads_q = a.integer();
    latent ? read_latent_shape(a, c) : read_shape(a, c);
}

// Runs a call that no tape records.
template <class Call> PyObject *perform_apart(bool (*run)(const Call &), const Call &call) {
    bool done;
    Py_BEGIN_ALLOW_THREADS;
    done = run(call);
    Py_END_ALLOW_THREADS;
    return done ? none() : PyErr_NoMemory();
}

void read_places(Arguments &a, KeyPlaces &c) {
    c.cu_seqlens = a.pointer<int32_t>(), c.seq_lens = a.pointer<int32_t>(), c.block_table = a.pointer<int32_t>();
    c.table_stride = a.integer(), c.batch = a.integer(), c.tails = a.pointer<int32_t>(), c.tail_depth = a.integer();
    c.cache = a.pointer<uint8_t>(), c.block_size = a.integer(), c.block_bytes = a.integer();
}

// k, row stride, slots, rows, cache, block_size, block_bytes, offset, dim, element
KERNEL(py_index_write) {
    Arguments a(items, count, 10);
    IndexWriteCall c = {};
    c.k = a.pointer<float>(), c.k_row_stride = a.integer(), c.slots = a.pointer<int64_t>(), c.rows = a.integer();
    c.cache = a.pointer<uint8_t>(), c.block_size = a.integer(), c.block_bytes = a.integer(), c.offset = a.integer();
    c.dim = a.integer(), c.element = (int)a.integer();
    return a.ok() ? perform_apart(run_index_write, c) : nullptr;
}

// q, row stride, weights, row stride, out, row stride, heads, scale, top_k, cu_seqlens, seq_lens, block_table, table_stride,
// batch, tails, tail_depth, cache, block_size, block_bytes, offset, dim, element
KERNEL(py_index_select) {
    Arguments a(items, count, 22);
    IndexCall c = {};
    c.q = a.pointer<float>(), c.q_row_stride = a.integer();
    c.weights = a.pointer<float>(), c.weights_row_stride = a.integer();
    c.out = a.pointer<int32_t>(), c.out_row_stride = a.integer();
    c.heads = a.integer(), c.scale = a.real(), c.top_k = a.integer();
    read_places(a, c);
    c.offset = a.integer(), c.dim = a.integer(), c.element = (int)a.integer();
    if (a.ok() && c.dim > kMaxIndex) return PyErr_Format(PyExc_ValueError, "keys of an index of %ld numbers", c.dim);
    return a.ok() ? perform_apart(run_index, c) : nullptr;
}

// chosen, row stride, top_k, first, rows, to, room, lengths, cu_seqlens, seq_lens, block_table, table_stride, batch, tails,
// tail_depth, cache, block_size, block_bytes, dim, element
KERNEL(py_index_gather) {
    Arguments a(items, count, 20);
    ChosenCall c = {};
    c.chosen = a.pointer<int32_t>(), c.chosen_row_stride = a.integer(), c.top_k = a.integer();
    c.first = a.integer(), c.rows = a.integer();
    c.to = a.pointer<uint8_t>(), c.room = a.integer(), c.lengths = a.pointer<int32_t>();
    read_places(a, c);
    c.dim = a.integer(), c.element = (int)a.integer();
    return a.ok() ? perform_apart(run_index_gather, c) : nullptr;
}

// q, row, head and group stride, q_pe, row, head and group stride, groups, cache, block_table, table_stride, sees_to, scale, cap,
// records, part, bases, then see read_parts: 6 numbers of a latent's shape, or 10
KERNEL(py_attention_records) {
    Arguments a(items, count, count == 29 ? 29 : 33);
    RecordsCall c = {};
    c.q = a.pointer<float>(), c.q_row_stride = a.integer(), c.q_head_stride = a.integer(), c.q_group = a.integer();
    c.q_pe = a.pointer<float>(), c.pe_row_stride = a.integer(), c.pe_head_stride = a.integer(), c.pe_group = a.integer();
    c.groups = a.integer(), c.cache = a.pointer<uint8_t>();
    c.block_table = a.pointer<int32_t>(), c.table_stride = a.integer(), c.sees_to = a.pointer<int32_t>();
    c.scale = a.real(), c.cap = a.real();
    c.records = a.pointer<float>(), c.part = a.integer(), c.bases = a.pointer<int64_t>();
    read_parts(a, c);
    return a.ok() ? perform_apart(run_attention_records, c) : nullptr;
}

// out, row and head stride, sinks, records, part, bases, ranks, piece, then see read_parts
KERNEL(py_attention_join) {
    Arguments a(items, count, count == 20 ? 20 : 24);
    JoinCall c = {};
    c.out = a.pointer<float>(), c.out_row_stride = a.integer(), c.out_head_stride = a.integer();
    c.sinks = a.pointer<float>();
    c.records = a.pointer<float>(), c.part = a.integer(), c.bases = a.pointer<int64_t>();
    c.ranks = a.integer(), c.piece = a.integer();
    read_parts(a, c);
    return a.ok() ? perform_apart(run_attention_join, c) : nullptr;
}

// which, table, table_rows, segments, format
void read_table(Arguments &a, LowRankCall &c) {
    c.which = a.pointer<int32_t>(), c.table = a.pointer<const LowRankUpdate *>(), c.table_rows = a.integer();
    c.segments = a.integer(), c.format = (int)a.integer();
}

// x, x_stride, rows, out, out_stride, outputs, k, and those of `read_table`
KERNEL(py_low_rank) {
    Arguments a(items, count, 12);
    LowRankCall c = {};
    c.x = a.pointer<float>(), c.x_stride = a.integer(), c.rows = a.integer();
    c.out = a.pointer<float>(), c.out_stride = a.integer(), c.outputs = a.integer(), c.k = a.integer();
    read_table(a, c);
    return a.ok() ? perform<run_low_rank>(c) : nullptr;
}

// to, from, stride, rows, k, first, lanes, format
KERNEL(py_low_rank_pack) {
    Arguments a(items, count, 8);
    LowRankPack c = {};
    c.to = a.pointer<uint8_t>(), c.from = a.pointer<uint8_t>(), c.stride = a.integer(), c.rows = a.integer();
    c.k = a.integer(), c.first = a.integer(), c.lanes = a.integer(), c.format = a.integer();
    if (!a.ok()) return nullptr;
    Py_BEGIN_ALLOW_THREADS; // steps go on next to it
    pack_low_rank(c);
    Py_END_ALLOW_THREADS;
    return none();
}

// weight, x, x_stride, rows, out, out_stride, accumulate, and those of `read_table`
KERNEL(py_linear_joined) {
    Arguments a(items, count, 12);
    JoinedRun c = {};
    LinearRun &linear = c.linear;
    linear.weight = a.linear(), linear.x = a.pointer<float>(), linear.x_stride = a.integer(), linear.rows = a.integer();
    linear.out = a.pointer<float>(), linear.out_stride = a.integer(), linear.accumulate = (int)a.integer();
    read_table(a, c.updates);
    if (!a.ok()) return nullptr;
    c.updates.x = linear.x, c.updates.x_stride = linear.x_stride, c.rows = c.updates.rows = linear.rows;
    c.updates.outputs = linear.weight->n, c.updates.k = linear.weight->k;
    return perform<run_joined>(c);
}

// starts, sizes, buffers, blocks, addresses, pages, save
KERNEL(py_copy_pages) {
    Arguments a(items, count, 7);
    PageCopies c = {};
    c.starts = a.pointer<int64_t>(), c.sizes = a.pointer<int64_t>(), c.buffers = a.integer();
    c.blocks = a.pointer<int64_t>(), c.addresses = a.pointer<int64_t>(), c.pages = a.integer(), c.save = a.integer() != 0;
    if (!a.ok()) return nullptr;
    Py_BEGIN_ALLOW_THREADS;
    copy_pages(c);
    Py_END_ALLOW_THREADS;
    return none();
}

KERNEL(py_prefault) { // address, bytes
    Arguments a(items, count, 2);
    void *address = a.pointer<void>();
    const size_t bytes = (size_t)a.integer();
    return a.ok() ? PyBool_FromLong(prefault(address, bytes)) : nullptr;
}

KERNEL(py_prefault_stop) {
    (void)items, (void)count;
    Py_BEGIN_ALLOW_THREADS;
    prefault_stop();
    Py_END_ALLOW_THREADS;
    return none();
}

KERNEL(py_tape_begin) { // rows, batch
    Arguments a(items, count, 2);
    long rows = a.integer(), batch = a.integer();
    if (!a.ok()) return nullptr;
    tape_begin(rows, batch);
    return none();
}

void destroy_tape(PyObject *capsule) { tape_free((Tape *)PyCapsule_GetPointer(capsule, kTapeCapsule)); }

KERNEL(py_tape_end) {
    (void)items, (void)count;
    Tape *tape = tape_end();
    return tape ? PyCapsule_New(tape, kTapeCapsule, destroy_tape) : none();
}

KERNEL(py_tape_length) { // tape
    Arguments a(items, count, 1);
    PyObject *capsule = a.object();
    Tape *tape = capsule ? (Tape *)PyCapsule_GetPointer(capsule, kTapeCapsule) : nullptr;
    return tape ? PyLong_FromLong(tape_length(tape)) : nullptr;
}

KERNEL(py_tape_run) { // tape, rows, batch
    Arguments a(items, count, 3);
    PyObject *capsule = a.object();
    Tape *tape = capsule ? (Tape *)PyCapsule_GetPointer(capsule, kTapeCapsule) : nullptr;
    long rows = a.integer(), batch = a.integer();
    if (!tape || !a.ok()) return nullptr;
    Status status;
    Py_BEGIN_ALLOW_THREADS;
    status = tape_run(tape, rows, batch);
    Py_END_ALLOW_THREADS;
    return status == kDone ? none() : raise(status);
}

PyObject *finished(Status status) { return status == kDone ? none() : raise(status); }

void destroy_ranks(PyObject *capsule) { ranks_close((Ranks *)PyCapsule_GetPointer(capsule, kRanksCapsule)); }

KERNEL(py_ranks_bytes) { // size, slot_bytes
    Arguments a(items, count, 2);
    const long size = a.integer(), slot_bytes = a.integer();
    if (!a.ok()) return nullptr;
    if (size < 1 || size > kMostRanks) return PyErr_Format(PyExc_ValueError, "%ld ranks, expected 1 to %ld", size, kMostRanks);
    return PyLong_FromSize_t(ranks_bytes(size, (size_t)slot_bytes));
}

KERNEL(py_ranks_open) { // memory, rank, size, slot_bytes
    Arguments a(items, count, 4);
    void *memory = a.pointer<void>();
    const long rank = a.integer(), size = a.integer(), slot_bytes = a.integer();
    if (!a.ok()) return nullptr;
    Ranks *ranks = ranks_open(memory, rank, size, (size_t)slot_bytes);
    return ranks ? PyCapsule_New(ranks, kRanksCapsule, destroy_ranks) : PyErr_NoMemory();
}

KERNEL(py_ranks_patience) { // ranks, microseconds of looking, milliseconds of waiting (0: without limit)
    Arguments a(items, count, 3);
    Ranks *ranks = a.ranks();
    const long spin = a.integer(), limit = a.integer();
    return a.ok() ? (ranks_patience(ranks, spin * 1000, limit * 1000000), none()) : nullptr;
}

KERNEL(py_ranks_begin) { // ranks, command
    Arguments a(items, count, 2);
    Ranks *ranks = a.ranks();
    const long command = a.integer();
    return a.ok() ? (ranks_begin(ranks, (uint64_t)command), none()) : nullptr;
}

template <void (*Call)(Ranks *)> PyObject *to_all(PyObject *const *items, Py_ssize_t count) {
    Arguments a(items, count, 1);
    Ranks *ranks = a.ranks();
    return a.ok() ? (Call(ranks), none()) : nullptr;
}

KERNEL(py_ranks_abort) { return to_all<ranks_abort>(items, count); }
KERNEL(py_ranks_break) { return to_all<ranks_break>(items, count); }

KERNEL(py_ranks_late) { // ranks
    Arguments a(items, count, 1);
    const Ranks *ranks = a.ranks();
    return a.ok() ? PyLong_FromLong(ranks_late(ranks)) : nullptr;
}

KERNEL(py_ranks_sum) { // ranks, x, x_stride, rows, width
    Arguments a(items, count, 5);
    SumCall c = {};
    c.ranks = a.ranks(), c.x = a.pointer<float>(), c.x_stride = a.integer(), c.rows = a.integer(), c.width = a.integer();
    return a.ok() ? perform<run_sum>(c) : nullptr;
}

KERNEL(py_ranks_gather) { // ranks, x, x_stride, rows, start, width, widest, out, out_stride, root
    Arguments a(items, count, 10);
    GatherPartsCall c = {};
    c.ranks = a.ranks(), c.x = a.pointer<float>(), c.x_stride = a.integer(), c.rows = a.integer(), c.start = a.integer();
    c.width = a.integer(), c.widest = a.integer(), c.out = a.pointer<float>(), c.out_stride = a.integer();
    c.root = a.integer();
    return a.ok() ? perform<run_gather_parts>(c) : nullptr;
}

KERNEL(py_ranks_barrier) { // ranks
    Arguments a(items, count, 1);
    Ranks *ranks = a.ranks();
    if (!a.ok()) return nullptr;
    Status status;
    Py_BEGIN_ALLOW_THREADS;
    status = ranks_barrier(ranks);
    Py_END_ALLOW_THREADS;
    return finished(status);
}

KERNEL(py_ranks_broadcast) { // ranks, root, data, bytes
    Arguments a(items, count, 4);
    Ranks *ranks = a.ranks();
    const long root = a.integer();
    void *data = a.pointer<void>();
    const size_t size = (size_t)a.integer();
    if (!a.ok()) return nullptr;
    Status status;
    Py_BEGIN_ALLOW_THREADS;
    status = ranks_broadcast(ranks, root, data, size);
    Py_END_ALLOW_THREADS;
    return finished(status);
}

KERNEL(py_ranks_exchange) { // ranks, data, bytes, pieces, out
    Arguments a(items, count, 5);
    Ranks *ranks = a.ranks();
    const void *data = a.pointer<void>();
    const size_t size = (size_t)a.integer();
    const bool pieces = a.integer() != 0;
    void *out = a.pointer<void>();
    if (!a.ok()) return nullptr;
    Status status;
    Py_BEGIN_ALLOW_THREADS;
    status = ranks_exchange(ranks, data, size, pieces, out);
    Py_END_ALLOW_THREADS;
    return finished(status);
}

KERNEL(py_ranks_write) { // ranks, data, bytes
    Arguments a(items, count, 3);
    Ranks *ranks = a.ranks();
    const void *data = a.pointer<void>();
    const size_t size = (size_t)a.integer();
    if (!a.ok()) return nullptr;
    Status status;
    Py_BEGIN_ALLOW_THREADS;
    status = ranks_write(ranks, data, size);
    Py_END_ALLOW_THREADS;
    return finished(status);
}

KERNEL(py_ranks_read) { // ranks, data, bytes, limited
    Arguments a(items, count, 4);
    Ranks *ranks = a.ranks();
    void *data = a.pointer<void>();
    const size_t size = (size_t)a.integer();
    const bool limited = a.integer() != 0;
    if (!a.ok()) return nullptr;
    Status status;
    Py_BEGIN_ALLOW_THREADS;
    status = ranks_read(ranks, data, size, limited);
    Py_END_ALLOW_THREADS;
    return finished(status);
}

#define METHOD(NAME) {#NAME, (PyCFunction)(void (*)(void))py_##NAME, METH_FASTCALL, nullptr}

PyMethodDef methods[] = {
    METHOD(isa),          METHOD(isas),   METHOD(compiled_isas), METHOD(set_isa), METHOD(pool_init), METHOD(pool_size),
    METHOD(linear_pack), METHOD(linear_round),
    METHOD(linear_bytes), METHOD(linear_prepared_bytes), METHOD(linear), METHOD(linear_rows), METHOD(linear_gated),
    METHOD(linear_activated), METHOD(norm), METHOD(rotary), METHOD(gated),
    METHOD(activate), METHOD(add), METHOD(open_gate), METHOD(scale),  METHOD(cache_write), METHOD(attention), METHOD(race),
    METHOD(take_rows),    METHOD(soft_cap), METHOD(tape_begin), METHOD(tape_end),  METHOD(tape_length), METHOD(tape_run),
    METHOD(route),        METHOD(experts_pack), METHOD(experts), METHOD(experts_replace),
    METHOD(experts_place), METHOD(experts_combine), METHOD(low_rank), METHOD(low_rank_pack), METHOD(linear_joined),
    METHOD(logprobs),     METHOD(pool_spin), METHOD(pool_bind), METHOD(copy_pages), METHOD(state_pack), METHOD(state),
    METHOD(prefault),     METHOD(prefault_stop), METHOD(latent_write), METHOD(latent_attention),
    METHOD(attention_records), METHOD(attention_join), METHOD(index_write), METHOD(index_select), METHOD(index_gather),
    METHOD(ranks_bytes),  METHOD(ranks_open), METHOD(ranks_patience), METHOD(ranks_begin), METHOD(ranks_abort),
    METHOD(ranks_break),  METHOD(ranks_late), METHOD(ranks_sum), METHOD(ranks_gather), METHOD(ranks_barrier),
    METHOD(ranks_broadcast), METHOD(ranks_exchange), METHOD(ranks_write), METHOD(ranks_read),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit__native() {
    // An extension compiled on another machine may have no table for this one. All later code relies on an active
    // table, so the import fails, and the platform falls back to torch's operations.
    if (kernels_at(0)) return PyModuleDef_Init(&definition);
    PyObject *names = table_names(kernels_compiled);
    if (names) PyErr_Format(PyExc_ImportError, "compiled for %R alone, which this processor does not run", names);
    Py_XDECREF(names);
    return nullptr;
}
