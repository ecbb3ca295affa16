#include "apps/train/collectives/cpu/peer_hello.h"

#include "apps/train/data/checksum.h"
#include "apps/train/kernels/cpu/little_endian.h"

namespace ddp::train {

namespace {

constexpr std::string_view kMagic = "ddptrain";
constexpr std::uint32_t kVersion = 3;

}  // namespace

std::uint64_t job_number(std::string_view job_id) {
  return fnv_hash(std::as_bytes(std::span(job_id)));
}

PeerHelloBytes encode_hello(const PeerHello& hello) {
  PeerHelloBytes bytes;
  std::byte* at = bytes.data();
  for (const char c : kMagic)
    *at++ = static_cast<std::byte>(c);
  at = put_little_endian(at, kVersion);
  at = put_little_endian(at, hello.job);
  at = put_little_endian(at, hello.attempt);
  at = put_little_endian(at, hello.world_size);
  at = put_little_endian(at, hello.rank);
  put_little_endian(at, hello.scalar_bytes);
  return bytes;
}

std::optional<PeerHello> decode_hello(std::span<const std::byte, 36> bytes) {
  const std::byte* at = bytes.data();
  for (const char c : kMagic) {
    if (*at++ != static_cast<std::byte>(c)) return std::nullopt;
  }
  std::uint32_t version = 0;
  at = take_little_endian(at, version);
  if (version != kVersion) return std::nullopt;
  PeerHello hello;
  at = take_little_endian(at, hello.job);
  at = take_little_endian(at, hello.attempt);
  at = take_little_endian(at, hello.world_size);
  at = take_little_endian(at, hello.rank);
  take_little_endian(at, hello.scalar_bytes);
  return hello;
}

}  // namespace ddp::train
