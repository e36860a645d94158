// Lists the kernel tables that run on this processor, and holds the active one. The build defines CORE_HAVE_* for
// each compiled file.
//
// A table is offered only where its file was compiled and the processor and the operating system both report support:
// cpuid and xgetbv on x86-64, the kernel's capability bits on aarch64 under Linux (elsewhere the plain NEON that
// every aarch64 has). AMX needs a permission besides, which a process has to ask for. For processors without it, a test
// builds its kernels upon tiles in plain C++, and compares their bits.
#include "native.h"

#include <atomic>
#include <string.h>
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__x86_64__)
// Whether this process may use tiles: the processor has them with products of 8-bit integers and of bfloat16, the system saves
// their state, and grants it to this process and its threads. Asking again changes nothing.
bool tiles_allowed() {
#if defined(__linux__)
    constexpr unsigned kBF16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kSaved = 3u << 17; // Intel SDM: CPUID 7.0 EDX, XCR0
    constexpr long kAskPermission = 0x1023, kTileData = 18;                   // Linux: ARCH_REQ_XCOMP_PERM
    unsigned a, b, c, d, low, high;
    constexpr unsigned kNeeded = kBF16 | kTile | kInt8;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kNeeded) != kNeeded) return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & kSaved) == kSaved && syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0;
#else
    return false;
#endif
}
#endif

bool runs(const char *name) {
    if (!strcmp(name, "generic")) return true;
#if defined(__x86_64__)
    __builtin_cpu_init(); // cpuid, and xgetbv for the registers that the operating system saves
    // Compilers assume popcnt wherever there is AVX.
    const bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt");
    if (!strcmp(name, "avx2")) return fma;
    const bool wide = fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (!strcmp(name, "avx512")) return wide;
    const bool vnni = wide && __builtin_cpu_supports("avx512vnni");
    if (!strcmp(name, "avx512_vnni")) return vnni;
    const bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
    if (!strcmp(name, "avx512_vnni_bf16")) return bf16;
    if (!strcmp(name, "amx")) return bf16 && tiles_allowed();
#elif defined(__aarch64__)
    if (!strcmp(name, "neon")) return true;
#if defined(__linux__)
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    const bool dot = first & HWCAP_ASIMDDP;
    if (!strcmp(name, "neon_dot")) return dot;
    if (!strcmp(name, "neon_bf16")) return dot && (second & HWCAP2_I8MM) && (second & HWCAP2_BF16);
#endif
#endif
    return false;
}

const KernelTable *const tables[] = {
#ifdef CORE_HAVE_AMX
    &core_kernels_amx,
#endif
#ifdef CORE_HAVE_AVX512_VNNI_BF16
    &core_kernels_avx512_vnni_bf16,
#endif
#ifdef CORE_HAVE_AVX512_VNNI
    &core_kernels_avx512_vnni,
#endif
#ifdef CORE_HAVE_AVX512
    &core_kernels_avx512,
#endif
#ifdef CORE_HAVE_AVX2
    &core_kernels_avx2,
#endif
#ifdef CORE_HAVE_NEON_BF16
    &core_kernels_neon_bf16,
#endif
#ifdef CORE_HAVE_NEON_DOT
    &core_kernels_neon_dot,
#endif
#ifdef CORE_HAVE_NEON
    &core_kernels_neon,
#endif
#ifdef CORE_HAVE_GENERIC
    &core_kernels_generic,
#endif
};

std::atomic<const KernelTable *> active{nullptr};

} // namespace

const KernelTable *kernels_compiled(int index) {
    return index < (int)(sizeof(tables) / sizeof(*tables)) ? tables[index] : nullptr;
}

const KernelTable *kernels_at(int index) {
    for (const KernelTable *table : tables)
        if (runs(table->name) && index-- == 0) return table;
    return nullptr;
}

const KernelTable *kernels_active() {
    const KernelTable *table = active.load(std::memory_order_acquire);
    if (!table) {
        table = kernels_at(0);
        active.store(table, std::memory_order_release);
    }
    return table;
}

bool kernels_select(const char *name) {
    for (int i = 0; const KernelTable *table = kernels_at(i); i++)
        if (!strcmp(table->name, name)) {
            active.store(table, std::memory_order_release);
            return true;
        }
    return false;
}
