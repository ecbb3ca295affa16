#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "apps/train/collectives/schedule/collective_machine.h"

// One rank of a small world receives arbitrary bytes from its peers, in pieces of any size. The rank must
// stay within its buffers. It must complete an order only after its schedule's number of bytes has arrived.

using namespace ddp::train;

namespace {

struct Input {
  std::span<const std::uint8_t> left;
  std::uint8_t byte() {
    if (left.empty()) return 0;
    const std::uint8_t value = left.front();
    left = left.subspan(1);
    return value;
  }
};

CollectiveOrder order_of(Input& input, int rank, int world, std::vector<float>& values) {
  CollectiveOrder order;
  const int kind = input.byte() % 6;
  values.assign(input.byte(), 1.0f);
  order.data = std::as_writable_bytes(std::span(values));
  order.element = sizeof(float);
  order.parts = world;
  order.add = vector_sum<float>().add;
  order.kind = CollectiveKind::kAllReduce;
  switch (kind) {
    case 0: order.schedule = ring_reduce_scatter(rank, world); break;
    case 1: order.schedule = halving_reduce_scatter(rank, world); break;
    case 2: order.schedule = ring_all_gather(rank, world); break;
    case 3: order.schedule = doubling_all_gather(rank, world); break;
    case 4:
      order.parts = 1;
      order.schedule = tree_broadcast(rank, world, input.byte() % world);
      break;
    default:
      order.parts = 3;
      order.schedule = chain_broadcast(rank, world, input.byte() % world, 3);
      break;
  }
  return order;
}

/// Writes the header that the rank expects, so that the input reaches the code behind the header's checks.
void put_right_header(std::span<std::byte> into, int number, std::size_t payload) {
  std::array<std::byte, CollectiveMachine::kHeaderSize> header{};
  header[0] = std::byte(number);
  header[4] = std::byte(CollectiveKind::kAllReduce);
  for (std::size_t i = 0; i < 8; ++i)
    header[8 + i] = std::byte(payload >> 8 * i & 0xff);
  std::copy_n(header.begin(), std::min(into.size(), header.size()), into.begin());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input{{data, size}};
  const int world = 2 + input.byte() % 6;
  const int rank = input.byte() % world;
  CollectiveMachine machine(rank, {});
  std::vector<float> values;
  for (int number = 1; number < 5; ++number) {
    machine.start(order_of(input, rank, world, values));
    while (!machine.done()) {
      if (const auto out = machine.to_send(); out.count != 0) {
        std::size_t all = 0;
        for (std::size_t i = 0; i < out.count; ++i)
          all += out.pieces[i].size();
        machine.sent(std::min<std::size_t>(all, 1 + input.byte()));
        continue;
      }
      const auto in = machine.to_receive();
      if (in.count == 0) std::abort();  // deadlock: no pending send or receive
      if (input.left.empty()) {
        machine.read_last_message(in.peer, std::as_bytes(std::span(data, size)));
        if (machine.lost(in.peer, "connection closed").text.empty()) std::abort();
        return 0;
      }
      const std::uint8_t how = input.byte();
      std::size_t got = 0;
      if (how % 4 != 0 && in.pieces[0].size() == CollectiveMachine::kHeaderSize) {
        put_right_header(in.pieces[0], number, how % 4 == 1 ? input.byte() : 4u * input.byte());
        got = in.pieces[0].size();
      } else {
        for (std::byte& byte : in.pieces[0].first(std::min<std::size_t>(in.pieces[0].size(), 1 + how)))
          byte = std::byte(input.byte()), ++got;
      }
      if (!machine.received(got)) return 0;
    }
  }
  return 0;
}
