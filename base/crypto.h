#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp {

/// Secret bytes: job tokens and keys. A Secret cannot be printed, formatted, logged, copied or turned into a
/// string. reveal() is the only access, so that each use can be found. The bytes are on their own pages, are
/// left out of core dumps, and are overwritten by the destructor. They may be swapped out.
class Secret {
 public:
  Secret() = default;
  /// Throws std::bad_alloc if memory is short.
  explicit Secret(std::string_view bytes);
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret() { wipe(); }

  /// Moves the bytes out of `text`, the memory of an option or environment variable, and overwrites them
  /// there.
  static Secret take(char* text, std::size_t size);

  /// The view is valid until this object is moved from or destroyed.
  std::string_view reveal() const { return {pages_, size_}; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  /// The time does not depend on the position of the difference; the sizes are not secret.
  friend bool operator==(const Secret& a, const Secret& b);

 private:
  void wipe();

  char* pages_ =
      nullptr;  ///< mapped; not on the heap, and not inside the object, since a move would leave a copy there
  std::size_t size_ = 0;
};

/// There is no formatter, on purpose.
std::ostream& operator<<(std::ostream&, const Secret&) = delete;

/// Returns `bytes` random bytes of the kernel as hexadecimal digits, for names that cannot be guessed, and
/// for secrets: no other copy stays in memory. Error: kSystem, the kernel has none yet.
Result<std::string> random_text(std::size_t bytes);

/// SHA-256 (FIPS 180-4), so that the static agent can check received files without a library. About 200 MB/s.
class Sha256 {
 public:
  void add(std::string_view bytes);
  /// Returns 64 lower-case hex digits, as sha256sum prints. Do not use the object afterwards.
  std::string hex();

 private:
  void take_block(const unsigned char* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> pending_{};
  std::size_t held_ = 0;
  std::uint64_t size_ = 0;
};

inline std::string sha256_hex(std::string_view bytes) {
  Sha256 sum;
  sum.add(bytes);
  return sum.hex();
}

}  // namespace ddp
