#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ddp::train {

/// The first message on a connection between two ranks, in both directions. It names the sending rank, its
/// job and its attempt. A rank that receives anything else closes the connection. The hello keeps out stray
/// connections and ranks of another attempt; it is not an authentication.
struct PeerHello {
  std::uint64_t job = 0;  ///< job_number() of the job's id
  std::uint32_t attempt = 0;
  std::uint32_t world_size = 0;
  std::uint32_t rank = 0;
  std::uint32_t scalar_bytes = 0;  ///< 4 or 8: ranks with different --dtype must not meet

  friend bool operator==(const PeerHello&, const PeerHello&) = default;
};

/// A stray connection that sends nothing may block a listener this long.
inline constexpr std::chrono::seconds kHelloTimeout{2};

/// Returns the 64-bit FNV-1a hash.
std::uint64_t job_number(std::string_view job_id);

/// "ddptrain", version 3 (u32), then the fields in order, all little-endian.
using PeerHelloBytes = std::array<std::byte, 36>;
PeerHelloBytes encode_hello(const PeerHello& hello);
/// Returns nothing if the bytes are not a hello of this version.
std::optional<PeerHello> decode_hello(std::span<const std::byte, 36> bytes);

}  // namespace ddp::train
