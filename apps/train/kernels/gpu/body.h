#pragma once

#include <cstddef>
#include <cstdint>

// What a kernel's body is. One text for two machines: the device driver (launch.cuh) runs it on a GPU, the
// host driver (host_launch.h) on a CPU, where it is proved without a GPU. A body is a struct
//
//   struct Body {
//     struct Args { … };     what the launch gives: plain pointers and numbers
//     struct Shared { … };   memory of one block; holds nothing that means anything at the beginning
//     struct Local { … };    what one thread keeps between phases: registers, if indices are constants
//     static constexpr int kThreads;    of a block
//     static constexpr int kMinBlocks;  may be left out: launch.cuh
//     static DDP_HD int blocks(const Args&);
//     static DDP_HD int phases(const Args&);
//     static DDP_HD void phase(int phase, Place at, Shared&, Local&, const Args&);
//   };
//
// Between two phases all threads of the block wait for each other. In a phase no thread reads what another
// one writes in the same phase, and no block reads what another one writes at all (WithLast is how it can):
// so the order in which blocks and threads run changes no bit. No sum is made by atomics: sums run in a fixed
// order.

#ifdef __CUDACC__
#define DDP_HD __host__ __device__ __forceinline__
#else
#define DDP_HD inline
#endif
// Of the loop that follows, whose trip count is a constant: arrays that it indexes can then lie in registers.
#ifdef __CUDA_ARCH__
#define DDP_UNROLL _Pragma("unroll")
#else
#define DDP_UNROLL
#endif

namespace ddp::train::kernels::device {

/// Which thread of which block.
struct ThreadIndex {
  int block = 0;
  int thread = 0;
};

/// For bodies whose threads share or keep nothing.
struct NoMemory {};

/// Two bodies in one launch: when the blocks of F have all ended, the one that ended last runs L, whose only
/// block it is. So what F's blocks leave behind is put together without a launch of its own.
///
/// L sees all that F's blocks wrote; of the block that runs it, it has nothing but the threads: Shared and
/// Local are L's own and hold nothing that means anything. Since L is one block and sums in its own order,
/// no bit depends on which block ended last. No block of F reads what L writes.
///
/// The ticket is how the last one is known: a number that belongs to this launch alone, in memory that begins
/// with zeros. It is 0 again when the launch has ended, so graphs replay it. Two launches with the same
/// ticket may not run at the same time.
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

/// Two bodies side by side in one block: what a last part has to do.
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

/// Some neighbours that move together: one load of 16 bytes on a GPU.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T v[N];
};

DDP_HD constexpr int divide_up(int count, int size) {
  return (count + size - 1) / size;
}

/// The rounds of halve() that sum `width` (a power of two) numbers.
DDP_HD constexpr int halvings(int width) {
  int rounds = 0;
  for (; width > 1; width /= 2)
    ++rounds;
  return rounds;
}

/// Round `round`, a phase of its own, of adding the upper half of `width` sums to the lower; after the last
/// one the total is in sums[0].
template <class N>
DDP_HD void halve(N* sums, int width, int round, int thread) {
  const int half = width >> (round + 1);
  if (thread < half) sums[thread] += sums[thread + half];
}

}  // namespace ddp::train::kernels::device
