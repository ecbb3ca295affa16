#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include "apps/train/kernels/device/body.h"

namespace ddp::train::kernels::device {

/// In which order the host runs what a GPU runs at the same time. A body that is right gives the same bits in
/// every order; one in which a thread reads what another writes in the same phase does not.
struct HostOrder {
  bool reverse_threads = false;
  unsigned shuffle_blocks = 0;  ///< a seed; 0: in order
};

/// Runs a body on the CPU, one thread after the other. Memory of blocks and threads begins with bytes that
/// make every floating-point number a nan, so that what was not written is seen.
template <class Body>
void run_on_host(const typename Body::Args& args, const HostOrder& order = {}) {
  using Shared = typename Body::Shared;
  using Local = typename Body::Local;
  static_assert(std::is_trivially_copyable_v<Shared> && std::is_trivially_copyable_v<Local>);
  constexpr int kGarbage = 0xff;
  std::vector<int> blocks(static_cast<std::size_t>(Body::blocks(args)));
  std::iota(blocks.begin(), blocks.end(), 0);
  if (order.shuffle_blocks != 0)
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(order.shuffle_blocks));
  const auto shared = std::make_unique_for_overwrite<Shared>();
  const auto locals = std::make_unique_for_overwrite<Local[]>(Body::kThreads);
  for (const int block : blocks) {
    std::memset(static_cast<void*>(shared.get()), kGarbage, sizeof(Shared));
    std::memset(static_cast<void*>(locals.get()), kGarbage, sizeof(Local) * Body::kThreads);
    for (int phase = 0; phase < Body::phases(args); ++phase) {
      for (int i = 0; i < Body::kThreads; ++i) {
        const int thread = order.reverse_threads ? Body::kThreads - 1 - i : i;
        Body::phase(phase, {block, thread}, *shared, locals[static_cast<std::size_t>(thread)], args);
      }
    }
  }
}

/// For programs of several bodies (conv_net_program.h).
struct HostRunner {
  HostOrder order;
  template <class Body>
  void run(const typename Body::Args& args) const {
    run_on_host<Body>(args, order);
  }
};

}  // namespace ddp::train::kernels::device
