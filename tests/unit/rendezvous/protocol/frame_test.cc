#include "rendezvous/protocol/frame.h"

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

}  // namespace
}  // namespace ddp::rendezvous
