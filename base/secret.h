#pragma once

#include <string.h>

#include <cstddef>
#include <ostream>
#include <string_view>
#include <utility>
#include <vector>

namespace ddp {

/// Bytes that must not be seen: job tokens and keys. It cannot be printed, formatted, logged, copied or
/// turned into a string; reveal() is the one way to the bytes, so that each use can be found. Overwritten
/// when it ends.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string_view bytes) : bytes_(bytes.begin(), bytes.end()) {}
  Secret(Secret&& other) noexcept : bytes_(std::move(other.bytes_)) {}
  Secret& operator=(Secret&& other) noexcept {
    if (this != &other) {
      wipe();
      bytes_ = std::move(other.bytes_);
    }
    return *this;
  }
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret() { wipe(); }

  /// Takes the bytes out of `text` and overwrites them there: an option's or an environment variable's own
  /// memory.
  static Secret take(char* text, std::size_t size) {
    Secret secret{std::string_view(text, size)};
    explicit_bzero(text, size);
    return secret;
  }

  /// Valid as long as this object is neither moved from nor destroyed.
  std::string_view reveal() const { return {bytes_.data(), bytes_.size()}; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  /// Takes the same time wherever the difference lies; the sizes are not secret.
  friend bool operator==(const Secret& a, const Secret& b) {
    if (a.size() != b.size()) return false;
    volatile unsigned char difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      difference = static_cast<unsigned char>(difference | (a.bytes_[i] ^ b.bytes_[i]));
    }
    return difference == 0;
  }

 private:
  void wipe() {
    if (!bytes_.empty()) explicit_bzero(bytes_.data(), bytes_.size());
    bytes_.clear();
  }

  std::vector<char>
      bytes_;  // not std::string: a short one lies inside the object and would stay behind at a move
};

/// No formatter, on purpose.
std::ostream& operator<<(std::ostream&, const Secret&) = delete;

}  // namespace ddp
