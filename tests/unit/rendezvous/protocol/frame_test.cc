
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/protocol/codec.h"
#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

std::vector<std::string> read_in_chunks(const std::string& bytes, std::mt19937& random, std::size_t largest) {
  FrameReader reader;
  std::vector<std::string> payloads;
  std::size_t position = 0;
  while (position < bytes.size()) {
    const auto space = reader.space();
    const std::size_t count = std::min({space.size(), bytes.size() - position, 1 + random() % largest});
    std::memcpy(space.data(), bytes.data() + position, count);
    reader.filled(count);
    position += count;
    for (;;) {
      auto frame = reader.next();
      REQUIRE(frame.has_value());
      if (!*frame) break;
      payloads.emplace_back(**frame);
    }
  }
  return payloads;
}

TEST_CASE("any chunking of the bytes gives the same frames") {
  std::mt19937 random(7);
  std::string bytes;
  std::vector<std::string> expected;
  for (int i = 0; i < 50; ++i) {
    const std::string data(random() % 200'000, static_cast<char>('a' + i % 26));
    const std::size_t start = bytes.size();
    append_frame(Notice{data}, bytes);
    expected.push_back(bytes.substr(start + kFrameHeader));
  }
  for (const std::size_t largest : {std::size_t{7}, std::size_t{4096}, std::size_t{1} << 20}) {
    // One byte at a time over 5 MB is slow, so the smallest chunks cover only the first frames.
    const std::size_t count = largest == 7 ? 3 : expected.size();
    std::size_t size = 0;
    for (std::size_t i = 0; i < count; ++i)
      size += kFrameHeader + expected[i].size();
    const auto got = read_in_chunks(bytes.substr(0, size), random, largest);
    REQUIRE(got.size() == count);
    CHECK(std::equal(got.begin(), got.end(), expected.begin()));
  }
}

TEST_CASE("a kept frame stays unchanged while the stream continues") {
  std::mt19937 random(11);
  std::string bytes;
  std::vector<std::string> expected;
  for (int i = 0; i < 400; ++i) {
    const std::string data(random() % 60'000, static_cast<char>('a' + i % 26));
    const std::size_t start = bytes.size();
    append_frame(Notice{data}, bytes);
    expected.push_back(bytes.substr(start + kFrameHeader));
  }
  struct Kept {
    std::size_t frame;
    std::shared_ptr<const char[]> memory;
    std::string_view payload;
  };
  FrameReader reader;
  std::vector<Kept> kept;
  std::size_t frames = 0;
  const auto check_oldest = [&] {
    CHECK(kept.front().payload == expected[kept.front().frame]);
    kept.erase(kept.begin());
  };
  for (std::size_t position = 0; position < bytes.size();) {
    const auto space = reader.space();
    REQUIRE(!space.empty());
    const std::size_t count = std::min({space.size(), bytes.size() - position, 1 + random() % 300'000});
    std::memcpy(space.data(), bytes.data() + position, count);
    reader.filled(count);
    position += count;
    for (;;) {
      auto frame = reader.next();
      REQUIRE(frame.has_value());
      if (!*frame) break;
      CHECK(**frame == expected[frames]);
      if (frames % 3 == 0) kept.push_back({frames, reader.keep(), **frame});
      ++frames;
    }
    while (kept.size() > 40)
      check_oldest();
  }
  CHECK(frames == expected.size());
  while (!kept.empty())
    check_oldest();
}

TEST_CASE("a length of zero or over the limit ends the stream before memory is allocated") {
  for (const std::string& header :
       {std::string("\0\0\0\0", 4), std::string("\x01\x00\x80\x00", 4), std::string("\xff\xff\xff\xff", 4)}) {
    FrameReader reader;
    const auto space = reader.space();
    std::memcpy(space.data(), header.data(), header.size());
    reader.filled(header.size());
    const auto frame = reader.next();
    REQUIRE_FALSE(frame.has_value());
    CHECK(frame.error().code == ErrorCode::kProtocol);
  }
}

Output output_of(std::uint32_t rank, std::string_view data) {
  return {3, rank, static_cast<std::uint8_t>(1 + rank % 2), 0x0102030405060708u + rank, data};
}

/// Reads into the queue's own memory, like an agent. Returns the frame that append_frame would make.
std::string put(OutputQueue& queue, std::uint32_t rank, const std::string& data, std::size_t space_size) {
  std::string frame;
  append_frame(output_of(rank, data), frame);
  if (data.empty()) {
    queue.commit(output_of(rank, {}));
    return frame;
  }
  const auto space = queue.space(space_size);
  REQUIRE(space.size() == space_size);
  std::memcpy(space.data(), data.data(), data.size());
  queue.commit(output_of(rank, {space.data(), data.size()}));
  return frame;
}

TEST_CASE("frames built in place equal those of the codec") {
  OutputQueue queue;
  CHECK(queue.empty());
  CHECK(queue.front(1000).empty());
  std::string expected = put(queue, 7, "hello\n", 100);
  expected += put(queue, 8, "", 0);
  expected += put(queue, 9, std::string(kMaxOutputData, 'x'), kMaxOutputData);
  CHECK_FALSE(queue.empty());
  const std::string_view front = queue.front(1u << 20);
  CHECK((front == expected));
  queue.pop(front.size());
  CHECK(queue.empty());
}

TEST_CASE("a piece holds whole frames, at least one") {
  OutputQueue queue;
  const std::string first = put(queue, 1, std::string(1000, 'a'), 1000);
  const std::string second = put(queue, 2, std::string(1000, 'b'), 1000);
  const std::string third = put(queue, 3, std::string(1000, 'c'), 1000);
  CHECK((queue.front(10) == first));
  CHECK((queue.front(2500) == first + second));
  queue.pop(first.size() + second.size());
  CHECK((queue.front(2500) == third));
}

TEST_CASE("a piece that is being sent stays in place while more is queued") {
  OutputQueue queue;
  std::string expected = put(queue, 1, std::string(60'000, 'a'), 65'536);
  const std::string_view sending = queue.front(1u << 20);
  for (std::uint32_t i = 0; i < 100; ++i)
    expected += put(queue, i, std::string(60'000, static_cast<char>('a' + i % 26)), 65'536);
  CHECK((sending == expected.substr(0, sending.size())));
  std::string sent;
  for (std::string_view piece = queue.front(1u << 17); !piece.empty(); piece = queue.front(1u << 17)) {
    sent += piece;
    queue.pop(piece.size());
  }
  CHECK((sent == expected));
}

TEST_CASE("reserved space without data leaves no trace") {
  OutputQueue queue;
  (void)queue.space(5000);
  CHECK(queue.empty());
  const std::string frame = put(queue, 1, "x", 5000);
  CHECK((queue.front(100) == frame));
}

TEST_CASE("any order of queueing and sending gives the bytes in order") {
  std::mt19937 random(5);
  OutputQueue queue;
  std::string expected;
  std::string sent;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    if (random() % 3 != 0) {
      const std::size_t size = random() % 5000;
      expected += put(queue, i, std::string(size, static_cast<char>(random())), size + random() % 2000);
    } else {
      const std::string_view piece = queue.front(random() % 20'000);
      sent += piece;
      queue.pop(piece.size());
    }
  }
  for (std::string_view piece = queue.front(4096); !piece.empty(); piece = queue.front(4096)) {
    sent += piece;
    queue.pop(piece.size());
  }
  CHECK((sent == expected));
  CHECK(queue.empty());
}

}  // namespace
}  // namespace ddp::rendezvous
