#include "base/secret.h"

#include <sstream>
#include <string>
#include <type_traits>

#include "tests/support/catch.h"

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

}  // namespace

TEST_CASE("a secret shows its bytes only when asked") {
  Secret secret("token");
  CHECK(secret.reveal() == "token");
  Secret moved = std::move(secret);
  CHECK(secret.empty());  // NOLINT(bugprone-use-after-move): that nothing stays behind is the point
  CHECK(moved.reveal() == "token");
}

TEST_CASE("taking a secret wipes the place where it was") {
  char text[] = "token";
  const Secret secret = Secret::take(text, 5);
  CHECK(secret.reveal() == "token");
  CHECK(std::string(text, 5) == std::string(5, '\0'));
}

TEST_CASE("secrets are compared whole") {
  const auto same = [](const char* a, const char* b) { return Secret(a) == Secret(b); };
  CHECK(same("", ""));
  CHECK(same("abc", "abc"));
  CHECK(!same("abc", "abd"));
  CHECK(!same("abc", "abcd"));
}

}  // namespace ddp
