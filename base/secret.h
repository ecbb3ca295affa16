#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp {

/// Bytes that must not be seen: job tokens and keys. It cannot be printed, formatted, logged, copied or
/// turned into a string; reveal() is the one way to the bytes, so that each use can be found. The bytes lie
/// on pages of their own, which no core dump contains, and are overwritten when it ends. Swap may hold them.
class Secret {
 public:
  Secret() = default;
  /// Throws std::bad_alloc without memory.
  explicit Secret(std::string_view bytes);
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret() { wipe(); }

  /// Takes the bytes out of `text` and overwrites them there: an option's or an environment variable's own
  /// memory.
  static Secret take(char* text, std::size_t size);

  /// Valid as long as this object is neither moved from nor destroyed.
  std::string_view reveal() const { return {pages_, size_}; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  /// Takes the same time wherever the difference lies; the sizes are not secret.
  friend bool operator==(const Secret& a, const Secret& b);

 private:
  void wipe();

  char* pages_ =
      nullptr;  ///< mapped; not the heap's, and never inside the object, where a move would leave it
  std::size_t size_ = 0;
};

/// No formatter, on purpose.
std::ostream& operator<<(std::ostream&, const Secret&) = delete;

/// `bytes` random bytes of the kernel's as hexadecimal digits, for names that nobody can guess. kSystem when
/// the kernel has none yet.
Result<std::string> random_text(std::size_t bytes);

}  // namespace ddp
