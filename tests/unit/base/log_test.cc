#include "base/log.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::log {

TEST_CASE("a line names its level, its module and its subject") {
  const Logger logger("remote");
  Capture capture;
  logger.info("rank ", 3, " of ", std::string("gpu01"), " exited ", std::int64_t{-1}, ' ', true);
  logger.warning("100 % {} %s");
  set_context("job 7f3a");
  logger.error("lost");
  set_context("");
  CHECK(capture.lines() == std::vector<std::string>{"info [remote] rank 3 of gpu01 exited -1 true",
                                                    "warning [remote] 100 % {} %s",
                                                    "error [remote] job 7f3a: lost"});
}

TEST_CASE("lines go to the chosen sink only, with the time") {
  const Logger logger("four");
  std::string text;
  logger.error("nobody hears this");
  write_to([&](std::string_view line) { text += line; });
  logger.error("heard {}");
  write_to({});
  logger.error("nor this");
  REQUIRE(text.size() == std::string("2026-11-21 12:34:56.789 error [four] heard {}\n").size());
  CHECK(text.substr(23) == " error [four] heard {}\n");
  CHECK(text.find_first_not_of("0123456789-:. ") == text.find('e'));
}

TEST_CASE("one call sets the level of all loggers, including future ones") {
  const Logger before("one");
  set_level(Level::kInfo);
  const Logger after("two");
  CHECK(before.enabled(Level::kInfo));
  CHECK(after.enabled(Level::kInfo));
  CHECK(!after.enabled(Level::kDebug));
  CHECK(set_level("error"));
  CHECK(!before.enabled(Level::kWarning));
  CHECK(!set_level("loud"));
  CHECK(before.enabled(Level::kError));
  set_level(Level::kWarning);
}

TEST_CASE("a capture sees all levels and restores the level") {
  const Logger logger("three");
  set_level(Level::kError);
  {
    Capture capture;
    logger.trace("seen");
    CHECK(capture.lines() == std::vector<std::string>{"trace [three] seen"});
  }
  CHECK(!logger.enabled(Level::kWarning));
  set_level(Level::kWarning);
}

}  // namespace ddp::log
