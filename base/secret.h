#pragma once

#include <cstddef>
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

/// Returns `bytes` random bytes of the kernel as hexadecimal digits, for names that cannot be guessed. Error:
/// kSystem, the kernel has none yet.
Result<std::string> random_text(std::size_t bytes);

}  // namespace ddp
