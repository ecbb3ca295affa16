#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/tcp_store_codec.h"

/// Requests encoded like a client's, and replies decoded like a client does it.
namespace ddp::test {

/// A request under construction: Bytes(op).text(key).number(5). The opcode is the one on the wire.
class RequestBytes {
 public:
  RequestBytes() = default;
  explicit RequestBytes(int opcode) { rendezvous::put_u8(bytes_, static_cast<std::uint8_t>(opcode)); }
  explicit RequestBytes(rendezvous::StoreOp op) : RequestBytes(static_cast<int>(op)) {}
  RequestBytes& u8(std::uint8_t value) {
    rendezvous::put_u8(bytes_, value);
    return *this;
  }
  RequestBytes& u32(std::uint32_t value) {
    rendezvous::put_u32(bytes_, value);
    return *this;
  }
  RequestBytes& number(std::int64_t value) {
    rendezvous::put_u64(bytes_, static_cast<std::uint64_t>(value));
    return *this;
  }
  RequestBytes& text(std::string_view value) {
    rendezvous::put_bytes(bytes_, value);
    return *this;
  }
  RequestBytes& list(const std::vector<std::string>& keys) {
    number(static_cast<std::int64_t>(keys.size()));
    for (const std::string& key : keys)
      text(key);
    return *this;
  }
  operator std::string() const { return bytes_; }
  std::string str() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Returns VALIDATE and the magic number, the first bytes of torch ≥ 2.2.
inline std::string greeting() {
  return RequestBytes(rendezvous::StoreOp::kValidate).u32(rendezvous::kStoreMagic);
}

}  // namespace ddp::test
