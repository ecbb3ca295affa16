#include "launcher/output/console.h"

#include <algorithm>
#include <string>

#include "tests/support/catch.h"

using namespace ddp::launcher;

namespace {

// Takes segments until the queue is empty.
std::string drain(ConsoleQueue& queue) {
  std::string all;
  while (!queue.empty()) {
    ConsoleQueue::Segment segment = queue.pop();
    all += segment.bytes;
    queue.done(segment);
  }
  CHECK(queue.waiting(1) == 0);
  CHECK(queue.waiting(2) == 0);
  return all;
}

std::string numbered(int first, int last) {
  std::string lines;
  for (int i = first; i <= last; ++i)
    lines += "line " + std::to_string(i) + "\n";
  return lines;
}

}  // namespace

TEST_CASE("segments of one kind are joined, and the total order is kept") {
  ConsoleQueue queue(false, 16);
  queue.push(1, false, "a\n");
  queue.push(1, false, "b\n");
  queue.push(1, true, "ours\n");
  queue.push(2, false, "c\n");
  queue.push(1, false, "d\n");
  CHECK(queue.waiting(1) == 11);
  CHECK(queue.waiting(2) == 2);
  CHECK(drain(queue) == "a\nb\nours\nc\nd\n");
}

TEST_CASE("a segment that was taken counts as waiting until it is done") {
  ConsoleQueue queue(false, 16);
  queue.push(2, false, "abc\n");
  ConsoleQueue::Segment segment = queue.pop();
  CHECK(queue.empty());
  CHECK(queue.waiting(2) == 4);
  queue.push(1, false, "a\n");
  queue.push(2, true, "b\n");
  queue.clear();
  CHECK(queue.waiting(1) == 0);
  CHECK(queue.waiting(2) == 4);
  queue.done(segment);
  CHECK(queue.waiting(2) == 0);
}

TEST_CASE("a holding queue becomes full and loses nothing") {
  ConsoleQueue queue(false, 64u << 10);
  const std::string lines = numbered(0, 9999);
  std::string all;
  while (!queue.full()) {
    queue.push(1, false, lines);
    all += lines;
  }
  CHECK(all.size() > ConsoleQueue::kHigh);
  CHECK_FALSE(queue.has_room());
  CHECK((drain(queue) == all));
  CHECK(queue.has_room());
}

TEST_CASE("a holding queue is bounded even when its sources do not stop") {
  ConsoleQueue queue(false, 64u << 10);
  const std::string line = std::string((1u << 20) - 1, 'x') + '\n';
  queue.push(1, true, "words of ours\n");
  for (int i = 0; i < 128; ++i) {
    queue.push(1, false, line);
    REQUIRE(queue.waiting(1) <= ConsoleQueue::kMost);
  }
  const std::string all = drain(queue);
  CHECK(all.starts_with("words of ours\nddplaunch: … 65 lines not shown; the files have them\nxxx"));
  CHECK(all.size() > 63u << 20);
}

TEST_CASE("notices of ddplaunch are bounded for any input of the nodes, and the latest are kept") {
  for (const bool skips : {false, true}) {
    ConsoleQueue queue(skips, 64u << 10);
    queue.push(1, false, "a worker's line\n");
    const std::string word = "gpu07: " + std::string(4096, 'x') + '\n';
    int drops = 0;
    std::size_t most = 0;
    for (int i = 0; i < 10'000; ++i) {
      const std::size_t before = queue.waiting(2);
      queue.push(2, true, word);
      most = std::max(most, queue.waiting(2));
      if (queue.waiting(2) > before) continue;
      ++drops;  // the latest half stays, in whole lines
      REQUIRE(queue.waiting(2) <= ConsoleQueue::kMostOurs / 2);
      REQUIRE(queue.waiting(2) > ConsoleQueue::kMostOurs / 2 - word.size());
    }
    CHECK(drops == 3);
    CHECK(most <= ConsoleQueue::kMostOurs);
    queue.push(2, true, "ddplaunch: exit 1: rank 3 on gpu07 exited 1\n");
    const std::size_t kept = queue.waiting(2) / word.size();
    const std::string all = drain(queue);
    const std::size_t skipped = 10'000 - kept + (skips ? 1 : 0);  // includes the worker's line
    CHECK(all.find(skipped_text(skipped) + '\n') != std::string::npos);
    CHECK(all.ends_with("x\nddplaunch: exit 1: rank 3 on gpu07 exited 1\n"));
    CHECK((skips || all.starts_with("a worker's line\n")));
  }
}

TEST_CASE("notices that were shown no longer count towards the limit") {
  ConsoleQueue queue(false, 64u << 10);
  const std::string words = std::string((1u << 20) - 1, 'x') + '\n';
  for (int i = 0; i < 20; ++i) {
    queue.push(2, true, words);
    REQUIRE(drain(queue) == words);
  }
}

TEST_CASE("a skipping queue keeps the latest lines and reports the number of missing ones") {
  ConsoleQueue queue(true, 16u << 10);
  for (int i = 0; i < 200; ++i)
    queue.push(1, false, numbered(i * 1000, i * 1000 + 999));
  CHECK_FALSE(queue.full());
  CHECK(queue.waiting(1) <= ConsoleQueue::kSkipAt + 16'000);
  const std::string all = drain(queue);
  const std::string gap = "ddplaunch: … ";
  REQUIRE(all.substr(0, gap.size()) == gap);
  const std::size_t first_end = all.find('\n');
  std::string reported =
      all.substr(gap.size(), all.find(" lines not shown; the files have them") - gap.size());
  reported.erase(reported.find(','), 1);
  CHECK(all.find(gap, 1) == std::string::npos);
  CHECK(all.substr(first_end + 1) == numbered(std::stoi(reported), 199'999));
}

TEST_CASE("notices of ddplaunch are never skipped, and each gap is reported in its place") {
  ConsoleQueue queue(true, 16u << 10);
  const std::string flood(ConsoleQueue::kSkipAt - 1000, 'x');
  queue.push(1, false, "first\n");
  queue.push(2, true, "ddplaunch: word\n");
  queue.push(1, false, flood + "\n");
  queue.push(1, false, numbered(1, 300));
  CHECK(drain(queue) == skipped_text(1) + "\nddplaunch: word\n" + skipped_text(1) + "\n" + numbered(1, 300));
}

TEST_CASE("a growing gap is reported once") {
  ConsoleQueue queue(true, 16u << 10);
  for (int i = 0; i < 3; ++i)
    queue.push(1, false, std::string(ConsoleQueue::kSkipAt, '\n') + "end\n");
  const std::string all = drain(queue);
  const std::size_t reported = all.find('\n') + 1;
  const auto shown = static_cast<std::uint64_t>(
      std::count(all.begin() + static_cast<std::ptrdiff_t>(reported), all.end(), '\n'));
  CHECK(shown > 0);
  CHECK(all.substr(0, reported) == skipped_text(3 * (ConsoleQueue::kSkipAt + 1) - shown) + "\n");
}

TEST_CASE("numbers have thousands separators") {
  CHECK(skipped_text(1) == "ddplaunch: … 1 line not shown; the files have it");
  CHECK(skipped_text(999) == "ddplaunch: … 999 lines not shown; the files have them");
  CHECK(skipped_text(12'345) == "ddplaunch: … 12,345 lines not shown; the files have them");
  CHECK(skipped_text(1'234'567) == "ddplaunch: … 1,234,567 lines not shown; the files have them");
}

TEST_CASE("lines that are handed over keep their order and leave a reusable buffer") {
  ConsoleQueue queue(false, 1000);
  std::string much = numbered(0, 999);
  const std::string expected = "before\n" + much + "little\nafter\n";
  queue.push(1, false, "before\n");
  queue.hand_over(1, false, much);
  CHECK(much.empty());
  std::string little = "little\n";
  queue.hand_over(1, false, little);
  CHECK(little.empty());
  queue.push(1, false, "after\n");
  CHECK(queue.waiting(1) == expected.size());
  CHECK(drain(queue) == expected);
  much = numbered(0, 999);
  queue.hand_over(1, false, much);
  CHECK(much.capacity() > 1000);  // the memory of the finished lines
}

TEST_CASE("a skipping queue takes handed-over lines in pieces, so that it lags by at most one piece") {
  ConsoleQueue queue(true, 1000);
  std::string much = numbered(0, 999);
  queue.hand_over(1, false, much);
  while (!queue.empty()) {
    ConsoleQueue::Segment segment = queue.pop();
    CHECK(segment.bytes.size() <= 2000);
    CHECK(segment.bytes.back() == '\n');
    queue.done(segment);
  }
  CHECK(queue.waiting(1) == 0);
}
