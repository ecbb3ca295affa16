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

}  // namespace

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

}  // namespace ddp
