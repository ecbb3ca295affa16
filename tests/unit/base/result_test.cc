#include "base/result.h"

#include <cerrno>

#include "tests/support/catch.h"

namespace ddp {

TEST_CASE("an errno becomes an error with text") {
  const Error error = system_error(ENOENT, "open /x");
  CHECK(error.code == ErrorCode::kSystem);
  CHECK(error.sys == ENOENT);
  CHECK(error.text == "open /x: No such file or directory");
  const Error where = within("node gpu02", error);
  CHECK(where.text == "node gpu02: open /x: No such file or directory");
  CHECK(where.sys == ENOENT);
}

TEST_CASE("reading the value of a failed result breaks an invariant") {
  const Result<int> failed = Error{ErrorCode::kTimeout, "too late", 0};
  CHECK_THROWS_AS(failed.value(), std::logic_error);
}

}  // namespace ddp
