#include "base/crypto.h"

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <type_traits>

#include "tests/support/catch.h"
#include "tests/support/skip.h"

namespace ddp {
namespace {

template <class T>
concept Printable = requires(std::ostream& out, const T& value) {
  out << value;
};

static_assert(Printable<std::string> && !Printable<Secret>);
static_assert(!std::is_copy_constructible_v<Secret> && !std::is_copy_assignable_v<Secret>);
static_assert(!std::is_convertible_v<Secret, std::string> &&
              !std::is_convertible_v<Secret, std::string_view>);

/// Returns the flags of the mapping that holds `address` ("rd wr mr mw me dd "); empty: no mapping does.
std::string mapping_flags(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    char dash = 0;
    std::istringstream head(line);
    if (head >> std::hex >> first >> dash >> last && dash == '-') inside = first <= wanted && wanted < last;
    if (inside && line.starts_with("VmFlags: ")) return line.substr(9);
  }
  return {};
}

TEST_CASE("a secret returns its bytes only on request") {
  Secret secret("token");
  CHECK(secret.reveal() == "token");
  Secret moved = std::move(secret);
  CHECK(secret.empty());  // NOLINT(bugprone-use-after-move): the moved-from state is tested
  CHECK(moved.reveal() == "token");
}

TEST_CASE("taking a secret wipes its source") {
  char text[] = "token";
  const Secret secret = Secret::take(text, 5);
  CHECK(secret.reveal() == "token");
  CHECK(std::string(text, 5) == std::string(5, '\0'));
}

TEST_CASE("no core dump contains a secret") {
  const Secret secret("token");
  const std::string flags = mapping_flags(secret.reveal().data());
  if (flags.empty()) SKIP_TEST("this kernel does not show the flags of a mapping");
  CHECK(flags.find("dd ") != std::string::npos);
}

TEST_CASE("secrets are equal only when all their bytes are equal") {
  const auto same = [](const char* a, const char* b) { return Secret(a) == Secret(b); };
  CHECK(same("", ""));
  CHECK(same("abc", "abc"));
  CHECK(!same("abc", "abd"));
  CHECK(!same("abc", "abcd"));
}

TEST_CASE("the examples of FIPS 180-4") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("the hash does not depend on the chunks") {
  std::string bytes;
  for (int i = 0; i < 300; ++i)
    bytes += static_cast<char>(i * 7);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const std::string part = bytes.substr(0, size);
    Sha256 cut;
    cut.add(part.substr(0, size / 3));
    cut.add(part.substr(size / 3));
    REQUIRE(cut.hex() == sha256_hex(part));
  }
}

}  // namespace
}  // namespace ddp
