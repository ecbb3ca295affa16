// A kernel's body is written once for two machines. The device driver (device_launch.h) runs it on a GPU. The
// host driver (tests/support/host_launch.h) runs it on a CPU, which tests it without a GPU. A body is a
// struct
//
//   struct Body {
//     struct Args { … };     the launch's arguments: plain pointers and numbers
//     struct Shared { … };   memory of one block; undefined at the beginning
//     struct Local { … };    one thread's variables between phases: registers, if indices are constants
//     static constexpr int kThreads;    per block
//     static constexpr int kMinBlocks;  optional: see device_launch.h
//     static DDP_HD int blocks(const Args&);
//     static DDP_HD int phases(const Args&);
//     static DDP_HD void phase(int phase, ThreadIndex at, Shared&, Local&, const Args&);
//   };
//
// Between two phases, all threads of the block wait for each other. In a phase, no thread reads what another
// one writes in the same phase. No block reads what another one writes, except through WithLast. So the order
// in which blocks and threads run changes no bit. Sums run in a fixed order and use no atomics.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#define DDP_HD __host__ __device__ __forceinline__
#else
#define DDP_HD inline
#endif
// Unrolls the next loop, whose trip count is constant, so that arrays that it indexes can lie in registers.
#ifdef __CUDA_ARCH__
#define DDP_UNROLL _Pragma("unroll")
#else
#define DDP_UNROLL
#endif

namespace ddp::train::kernels::device {

/// One thread of one block.
struct ThreadIndex {
  int block = 0;
  int thread = 0;
};

/// Shared or Local of a body that needs none.
struct NoMemory {};

/// What bodies of one phase have in common.
struct OnePhase {
  using Shared = NoMemory;
  using Local = NoMemory;
  template <class Args>
  static DDP_HD int phases(const Args&) {
    return 1;
  }
};

/// Two bodies in one launch. When all blocks of F have ended, the block that ended last runs L, as L's only
/// block. So the results of F's blocks are combined without another launch.
///
/// L sees all that F's blocks wrote. It takes over only the threads of the block that runs it: Shared and
/// Local are L's own and undefined at the beginning. L is one block and sums in its own order, so no bit
/// depends on which block ended last. No block of F reads what L writes.
///
/// The ticket identifies the last block: a number for this launch alone, in memory that begins with zeros. It
/// is 0 again when the launch has ended, so graphs can replay it. Two launches with the same ticket must not
/// run at the same time.
template <class F, class L>
struct WithLast {
  using First = F;
  using Last = L;
  struct Args {
    typename F::Args first;
    typename L::Args last;
    unsigned* ticket;  ///< null: F alone
  };
  static constexpr int kThreads = F::kThreads;
  static_assert(L::kThreads == kThreads);
};

template <class Body>
inline constexpr bool kHasLast = false;
template <class F, class L>
inline constexpr bool kHasLast<WithLast<F, L>> = true;

/// Two bodies side by side in one block, for the last part of a launch.
template <class A, class B>
struct BodyPair {
  struct Args {
    typename A::Args a;
    typename B::Args b;
  };
  struct Shared {
    typename A::Shared a;
    typename B::Shared b;
  };
  struct Local {
    typename A::Local a;
    typename B::Local b;
  };
  static constexpr int kThreads = A::kThreads;
  static_assert(B::kThreads == kThreads);

  static DDP_HD int blocks(const Args&) { return 1; }
  static DDP_HD int phases(const Args& args) {
    const int a = A::phases(args.a), b = B::phases(args.b);
    return a > b ? a : b;
  }
  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local& local, const Args& args) {
    if (phase < A::phases(args.a)) A::phase(phase, at, shared.a, local.a, args.a);
    if (phase < B::phases(args.b)) B::phase(phase, at, shared.b, local.b, args.b);
  }
};

/// Runs launches(runner) beside the runner's later launches, behind its earlier ones. A runner without
/// branches runs all launches in the order of the calls.
template <class Runner, class Launches>
void run_beside(const Runner& runner, const Launches& launches) {
  if constexpr (requires { runner.run_beside(launches); }) {
    runner.run_beside(launches);
  } else {
    launches(runner);
  }
}
/// Puts later launches behind those of run_beside().
template <class Runner>
void join_branch(const Runner& runner) {
  if constexpr (requires { runner.join_branch(); }) runner.join_branch();
}

/// N neighbors that move together: one load of 16 bytes on a GPU.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T v[N];
};

/// Copies N neighbors into the block's memory, which has them in the next phase. A GPU since 8.0 copies
/// numbers of the same type while the thread goes on. Both addresses are aligned to a Pack.
template <int N, class T, class From>
DDP_HD void load_ahead(T* to, const From* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, From>) {
    const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));
    constexpr int kBytes = static_cast<int>(N * sizeof(T));
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(kBytes) : "memory");
    return;
  }
#endif
  const Pack<From, N> read = *reinterpret_cast<const Pack<From, N>*>(from);
  Pack<T, N> written;
  DDP_UNROLL
  for (int n = 0; n < N; ++n)
    written.v[n] = static_cast<T>(read.v[n]);
  *reinterpret_cast<Pack<T, N>*>(to) = written;
}
/// The count of numbers that load_ahead() copies best.
template <class From>
inline constexpr int kLoaded = 16 / static_cast<int>(sizeof(From));

DDP_HD constexpr int divide_up(int count, int size) {
  return (count + size - 1) / size;
}

/// Sums every `Stride`-th of `Count` numbers.
template <int Count, int Stride, class T>
DDP_HD T sum_every(const T* numbers) {
  T sum = T(0);
  DDP_UNROLL
  for (int i = 0; i < Count; i += Stride)
    sum += numbers[i];
  return sum;
}

/// Returns the number of rounds in which halve() sums `width` (a power of two) numbers.
DDP_HD constexpr int halvings(int width) {
  int rounds = 0;
  for (; width > 1; width /= 2)
    ++rounds;
  return rounds;
}

/// Adds the upper half of `width` sums to the lower half. Each round is a phase of its own. After the last
/// round, the total is in sums[0].
template <class N>
DDP_HD void halve(N* sums, int width, int round, int thread) {
  const int half = width >> (round + 1);
  if (thread < half) sums[thread] += sums[thread + half];
}

/// The upper half of a float: its range, with 8 bits of precision. It only stores numbers; no kernel computes
/// with it. Conversions use integers alone, so that every GPU and the host get the same bits. (CUDA's own
/// conversion maps all nans to one.)
struct Bf16 {
  std::uint16_t bits;

  Bf16() = default;
  /// Rounds to the nearest, ties to even. A value beyond the largest becomes infinity; a nan stays a nan of
  /// the same sign.
  explicit DDP_HD Bf16(float value) : bits(rounded(value)) {}

  explicit DDP_HD operator float() const {
    const std::uint32_t whole = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &whole, sizeof value);
    return value;
  }

 private:
  static DDP_HD std::uint16_t rounded(float value) {
    std::uint32_t whole;
    std::memcpy(&whole, &value, sizeof whole);
    const std::uint32_t upper = whole >> 16;
    if ((whole & 0x7fffffffU) > 0x7f800000U) {
      // Truncation would turn a nan whose upper half is that of infinity into infinity.
      return static_cast<std::uint16_t>((upper & 0x7fU) == 0 ? upper | 0x40U : upper);
    }
    return static_cast<std::uint16_t>((whole + 0x7fffU + (upper & 1U)) >> 16);
  }
};

}  // namespace ddp::train::kernels::device
