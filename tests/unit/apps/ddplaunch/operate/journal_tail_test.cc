#include "apps/ddplaunch/operate/job_files.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

TEST_CASE("a tail has each new line once, and goes on in a new journal") {
  std::string directory = (fs::temp_directory_path() / "ddp-journal-XXXXXX").string();
  REQUIRE(::mkdtemp(directory.data()) != nullptr);
  const fs::path path = fs::path(directory) / "events.jsonl";
  JournalTail early(directory);
  CHECK(early.new_lines().empty());
  std::ofstream(path) << "one\ntw";
  JournalTail tail(directory);
  CHECK(early.new_lines() == Lines{"one"});
  CHECK(tail.new_lines().empty());
  std::ofstream(path, std::ios::app) << "o\nthree\n";
  CHECK(early.new_lines() == Lines{"two", "three"});
  CHECK(tail.new_lines() == Lines{"o", "three"});
  std::ofstream(path, std::ios::app) << "four\n";
  fs::rename(path, path.string() + ".1");
  std::ofstream(path) << "five\n";
  CHECK(tail.new_lines() == Lines{"four", "five"});
  CHECK(tail.new_lines().empty());
  fs::remove_all(directory);
}

TEST_CASE("an event is text for people") {
  CHECK(event_text(
            R"({"id":4,"event":"rank_exited","attempt":0,"node":"gpu02","rank":5,"reason":"exited 3"})") ==
        "attempt 0: rank exited, gpu02, rank 5: exited 3");
  CHECK(event_text(R"({"event":"attempt_stopping","attempt":1,"node":null,"rank":null,"reason":null})") ==
        "attempt 1 stopping");
  CHECK(event_text(R"({"event":"job_started","attempt":null})") == "job started");
  CHECK(event_text(R"({"event":"signal","reason":"\u001b[2Jx\ny"})") == "signal: \\x1b[2Jx\\ny");
  for (const char* line : {"", "cut", "[]", "{}", R"({"event":3})"}) {
    CAPTURE(line);
    CHECK(event_text(line).empty());
  }
}

}  // namespace
}  // namespace ddp
