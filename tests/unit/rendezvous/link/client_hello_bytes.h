#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddp::test {

inline std::string number(std::size_t value, std::size_t width) {
  std::string bytes(width, '\0');
  for (; width-- > 0; value >>= 8)
    bytes[width] = static_cast<char>(value & 255);
  return bytes;
}
inline std::string sized(std::size_t width, std::string_view bytes) {
  return number(bytes.size(), width) + std::string(bytes);
}

/// A ClientHello, piece by piece; the default values make a valid hello of ddplaunch.
struct HelloBytes {
  std::string identity = "ddplaunch-link/2 agent job1 gpu02 000102030405060708090a0b0c0d0e0f";
  std::string suites = number(0x1301, 2);
  std::string versions = number(0x0304, 2);
  std::string modes = number(1, 1);
  std::string compressions = number(0, 1);
  std::string more = {};   ///< extensions before the key
  std::string after = {};  ///< extensions behind the key
  std::string binder = std::string(32, 'b');
  int keys = 1;
  bool offers_key = true;

  static std::string extension(std::size_t type, std::string_view body) {
    return number(type, 2) + sized(2, body);
  }
  std::string body() const {
    std::string extensions = extension(43, sized(1, versions)) + extension(45, sized(1, modes)) + more;
    std::string identities;
    std::string binders;
    for (int i = 0; i < keys; ++i) {
      identities += sized(2, identity) + number(0, 4);
      binders += sized(1, binder);
    }
    if (offers_key) extensions += extension(41, sized(2, identities) + sized(2, binders));
    extensions += after;
    return number(0x0303, 2) + std::string(32, 'r') + sized(1, "") + sized(2, suites) +
           sized(1, compressions) + sized(2, extensions);
  }
  std::string record() const { return number(0x160301, 3) + sized(2, number(1, 1) + sized(3, body())); }
};

}  // namespace ddp::test
