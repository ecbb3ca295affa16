// Feeds arbitrary bytes to the TCPStore protocol, from one connection and from several. The store's memory
// must stay bounded, and a closed connection must leave no waiter. The size of the chunks must not change the
// replies; the first byte of the input seeds that size.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/key_store.h"
#include "tests/fuzz/require.h"

namespace {

using namespace ddp::rendezvous;

constexpr std::size_t kStoreBytes = 1 << 20;

// The replies to one connection, and whether its stream was rejected.
struct Outcome {
  std::string replies;
  bool broken = false;
  bool operator==(const Outcome&) const = default;
};

void serve(KeyStore& store, StoreConnectionId id, StoreDecoder& decoder, Outcome& outcome,
           std::vector<StoreNotice>& notices) {
  StoreRequest request;
  while (!outcome.broken) {
    const auto next = decoder.next(request);
    if (next && !*next) return;
    outcome.broken = !next || !store.handle(id, request, outcome.replies, notices);
  }
}

// Serves one connection, in chunks of up to `most` bytes.
Outcome alone(std::string_view bytes, std::size_t most, std::uint32_t seed) {
  KeyStore store(kStoreBytes);
  StoreDecoder decoder;
  Outcome outcome;
  std::vector<StoreNotice> notices;
  while (!bytes.empty() && !outcome.broken) {
    seed = seed * 1664525 + 1013904223;
    const std::size_t size = 1 + (seed >> 8) % most;
    decoder.feed(bytes.substr(0, size));
    bytes.remove_prefix(std::min(size, bytes.size()));
    serve(store, 1, decoder, outcome, notices);
    require(outcome.broken || decoder.buffered() <= kMaxStoreRequest);
  }
  if (!outcome.broken && decoder.undecided()) {
    decoder.decide();
    serve(store, 1, decoder, outcome, notices);
    require(!decoder.undecided());
  }
  require(store.bytes() <= kStoreBytes);
  store.close(1, notices);
  require(!store.has_waiters());
  return outcome;
}

// Serves four connections on one store. The connections take chunks in turn. Each connection starts with a
// valid greeting, so that the input reaches the requests.
void together(std::string_view bytes) {
  constexpr std::size_t kConnections = 4;
  KeyStore store(kStoreBytes);
  std::vector<StoreDecoder> decoders(kConnections);
  std::vector<Outcome> outcomes(kConnections);
  std::vector<StoreNotice> notices;
  std::string greeting(1, '\0');
  put_u32(greeting, kStoreMagic);
  for (StoreDecoder& decoder : decoders)
    decoder.feed(greeting);
  for (std::size_t turn = 0; !bytes.empty(); ++turn) {
    const std::size_t size = 1 + static_cast<unsigned char>(bytes[0]) % 64;
    const std::string_view chunk = bytes.substr(0, size);
    bytes.remove_prefix(chunk.size());
    const std::size_t at = turn % kConnections;
    if (outcomes[at].broken) continue;
    decoders[at].feed(chunk.substr(1));
    serve(store, at, decoders[at], outcomes[at], notices);
    if (outcomes[at].broken) store.close(at, notices);
  }
  for (const StoreNotice& notice : notices)
    require(notice.to < kConnections && notice.bytes.size() == 1);
  for (std::size_t at = 0; at < kConnections; ++at)
    store.close(at, notices);
  require(!store.has_waiters());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = alone(bytes, size, 1);
  require(alone(bytes, 1, 1) == whole);
  require(alone(bytes, 1 + data[0] % 32, data[0]) == whole);
  together(bytes);
  return 0;
}
