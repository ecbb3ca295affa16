#pragma once

#include <cstdint>
#include <vector>

#include "apps/train/data/hash.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/gpu/net_programs.h"
#include "tests/support/host_launch.h"

// The GPU's programs on the host, and labels for them.

namespace ddp::train::kernels::device {

inline std::vector<std::uint8_t> labels_of(int batch, int step) {
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(batch));
  for (int i = 0; i < batch; ++i)
    labels[i] = static_cast<std::uint8_t>(mix_bits(static_cast<std::uint64_t>(100 * step + i)) % kClasses);
  return labels;
}

inline Arena& arena_on_host(AlignedBuffer<std::byte>& bytes) {
  static thread_local Arena arena;
  return arena = Arena(bytes.data());
}

/// A program on the host, with its own memory.
template <class T, class S = T>
struct DeviceConvNetOnHost {
  AlignedBuffer<std::byte> bytes;
  ConvNetMemory<T, S> memory;
  WeightMemory<T, S>& training = memory.training;

  explicit DeviceConvNetOnHost(int batch) : bytes(size_for(batch)), memory(arena_on_host(bytes), batch) {}
  static std::size_t size_for(int batch) {
    Arena counting;
    ConvNetMemory<T, S>(counting, batch);
    return counting.size();
  }
  void forward_backward(int batch, const HostOrder& order) {
    run_conv_net_forward(HostRunner{order}, memory, batch, true);
    run_conv_net_backward(HostRunner{order}, memory, batch, [](std::size_t) {});
  }
};

template <class T, class S = T>
struct DeviceMlpOnHost {
  AlignedBuffer<std::byte> bytes;
  MlpMemory<T, S> memory;
  WeightMemory<T, S>& training = memory.training;

  DeviceMlpOnHost(int width, int depth, int count, int batch)
      : bytes(size_for(width, depth, count, batch)),
        memory(arena_on_host(bytes), width, depth, count, batch) {}
  static std::size_t size_for(int width, int depth, int count, int batch) {
    Arena counting;
    MlpMemory<T, S>(counting, width, depth, count, batch);
    return counting.size();
  }
  void forward_backward(int batch, const HostOrder& order) {
    run_mlp_forward(HostRunner{order}, memory, batch, true);
    run_mlp_backward(HostRunner{order}, memory, batch, [](std::size_t) {});
  }
};

}  // namespace ddp::train::kernels::device
