#include "base/result.h"

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp {
namespace {

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

namespace {

Result<std::unique_ptr<int>> make_number(bool succeed) {
  if (!succeed) return Error{ErrorCode::kTimeout, "no number", ETIMEDOUT};
  return std::make_unique<int>(7);
}

Result<> check_number(int number) {
  if (number == 7) return {};
  return Error{ErrorCode::kUsage, "not 7"};
}

/// `steps` records how far it came.
Result<std::string> use_number(bool succeed, int added, std::vector<std::string>& steps) {
  auto number = DDP_TRY(within("node gpu02", make_number(succeed)));  // a value that can only be moved
  steps.push_back("made");
  DDP_TRY(check_number(*number + added));
  steps.push_back("checked");
  return std::to_string(*number);
}

}  // namespace

TEST_CASE("DDP_TRY gives the value, or returns the error from the function") {
  std::vector<std::string> steps;
  CHECK(use_number(true, 0, steps).value() == "7");
  CHECK(steps == std::vector<std::string>{"made", "checked"});
  steps.clear();
  const auto none = use_number(false, 0, steps);
  REQUIRE(none.has_error());
  CHECK(none.error().code == ErrorCode::kTimeout);
  CHECK(none.error().text == "node gpu02: no number");
  CHECK(none.error().sys == ETIMEDOUT);
  CHECK(steps.empty());
  const auto wrong = use_number(true, 1, steps);
  REQUIRE(wrong.has_error());
  CHECK(wrong.error().text == "not 7");
  CHECK(steps == std::vector<std::string>{"made"});
}

TEST_CASE("a rule that holds does not evaluate the values of its message") {
  int evaluated = 0;
  const auto value = [&evaluated] { return ++evaluated; };
  DDP_REQUIRE(1 + 1 == 2, value());
  DDP_REQUIRE(true);
  CHECK(evaluated == 0);
}

}  // namespace
}  // namespace ddp
