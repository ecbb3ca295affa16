// Feeds arbitrary bytes to the reader of the agent's greeting. The size of the chunks must not change the
// result, and the noise that the reader reports must be safe to print.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "remote/bootstrap/bootstrap.h"
#include "tests/fuzz/require.h"

using ddp::remote::Bootstrap;

namespace {

/// Answers every request of the host, as FanOut does.
Bootstrap::State answer_all(Bootstrap& reader, Bootstrap::State state, std::size_t& files) {
  while (state == Bootstrap::State::kNeed || state == Bootstrap::State::kSend) {
    if (state == Bootstrap::State::kSend) require(reader.wanted_file() == files++);
    state = reader.advance();
  }
  return state;
}

Bootstrap read_in_chunks(std::string_view bytes, std::size_t chunk, Bootstrap::Lookup push) {
  Bootstrap reader("gpu01", "/opt/ddplaunch/ddplaunchd", push);
  std::size_t files = 0;
  while (!bytes.empty()) {
    const std::size_t count = std::min(chunk, bytes.size());
    const Bootstrap::State state = reader.feed(bytes.substr(0, count));
    require(push == Bootstrap::Lookup::kPush ||
            (state != Bootstrap::State::kNeed && state != Bootstrap::State::kSend));
    // After the greeting the bytes belong to the protocol, and the driver feeds no more.
    if (answer_all(reader, state, files) != Bootstrap::State::kReading) break;
    bytes.remove_prefix(count);
  }
  return reader;
}

void check_printable(const Bootstrap& reader) {
  for (const std::string& line : reader.noise()) {
    require(std::none_of(line.begin(), line.end(),
                         [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7F; }));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t chunk = data[0] % 31 + 1;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Bootstrap::Lookup push = data[0] % 2 == 0 ? Bootstrap::Lookup::kPush : Bootstrap::Lookup::kNone;
  Bootstrap whole = read_in_chunks(bytes, bytes.size() + 1, push);
  Bootstrap pieces = read_in_chunks(bytes, chunk, push);
  require(whole.need().machine == pieces.need().machine && whole.need().attempts == pieces.need().attempts);
  require(whole.state() == pieces.state());
  require(whole.noise() == pieces.noise());
  check_printable(whole);
  if (whole.state() == Bootstrap::State::kHello) {
    require(whole.hello().version == pieces.hello().version &&
            whole.hello().protocol == pieces.hello().protocol);
    require(whole.rest().starts_with(pieces.rest()));
  }
  if (whole.state() == Bootstrap::State::kFailed) require(whole.failure().text == pieces.failure().text);
  whole.feed_errors(bytes);
  (void)whole.ended(data[0]);
  (void)whole.timed_out();
  return 0;
}
