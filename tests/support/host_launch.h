#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// The order in which the host runs what a GPU runs in parallel. A correct body gives the same bits in every
/// order. A body in which a thread reads what another one writes in the same phase does not.
struct HostOrder {
  bool reverse_threads = false;
  unsigned shuffle_blocks = 0;  ///< a seed; 0: in order
};

/// The memory of a block on the CPU. It begins with bytes that make every floating-point number a nan, so
/// that reads of unwritten memory show.
template <class Body>
class HostBlock {
 public:
  void run(int block, const typename Body::Args& args, const HostOrder& order) {
    constexpr int kGarbage = 0xff;
    std::memset(static_cast<void*>(shared_.get()), kGarbage, sizeof(Shared));
    std::memset(static_cast<void*>(locals_.get()), kGarbage, sizeof(Local) * Body::kThreads);
    for (int phase = 0; phase < Body::phases(args); ++phase) {
      for (int i = 0; i < Body::kThreads; ++i) {
        const int thread = order.reverse_threads ? Body::kThreads - 1 - i : i;
        Body::phase(phase, {block, thread}, *shared_, locals_[static_cast<std::size_t>(thread)], args);
      }
    }
  }

 private:
  using Shared = typename Body::Shared;
  using Local = typename Body::Local;
  static_assert(std::is_trivially_copyable_v<Shared> && std::is_trivially_copyable_v<Local>);
  std::unique_ptr<Shared> shared_ = std::make_unique_for_overwrite<Shared>();
  std::unique_ptr<Local[]> locals_ = std::make_unique_for_overwrite<Local[]>(Body::kThreads);
};

/// Does CUDA's atomicInc; returns true for the last block.
inline bool take_ticket(unsigned* ticket, int blocks) {
  const unsigned before = *ticket, most = static_cast<unsigned>(blocks) - 1;
  *ticket = before >= most ? 0 : before + 1;
  return before == most;
}

/// Runs a body on the CPU, one thread after the other. The ticket decides when the last part runs, as on a
/// GPU.
template <class Body>
void run_on_host(const typename Body::Args& args, const HostOrder& order = {}) {
  const auto run_blocks = [&](auto& memory, const auto& own_args, int count, const auto& ended) {
    std::vector<int> blocks(static_cast<std::size_t>(count));
    std::iota(blocks.begin(), blocks.end(), 0);
    if (order.shuffle_blocks != 0)
      std::shuffle(blocks.begin(), blocks.end(), std::mt19937(order.shuffle_blocks));
    for (const int block : blocks) {
      memory.run(block, own_args, order);
      ended();
    }
  };
  if constexpr (kHasLast<Body>) {
    const int count = Body::First::blocks(args.first);
    HostBlock<typename Body::First> memory;
    HostBlock<typename Body::Last> last;
    run_blocks(memory, args.first, count, [&] {
      if (args.ticket != nullptr && take_ticket(args.ticket, count)) last.run(0, args.last, order);
    });
  } else {
    HostBlock<Body> memory;
    run_blocks(memory, args, Body::blocks(args), [] {});
  }
}

/// Runs programs of several bodies (net_programs.h).
struct HostRunner {
  HostOrder order;
  template <class Body>
  void run(const typename Body::Args& args) const {
    run_on_host<Body>(args, order);
  }
};

}  // namespace ddp::train::kernels::device
