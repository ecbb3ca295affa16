#include "rendezvous/protocol/codec.h"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <boost/pfr/core.hpp>

#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

std::string payload_of(const Message& message) {
  std::string frame;
  append_frame(message, frame);
  return frame.substr(kFrameHeader);
}

TEST_CASE("the bytes are those of docs/developers/protocol.md") {
  std::string frame;
  append_frame(Stop{0x01020304, 5, "ab", 2}, frame);
  const std::string expected(
      "\x10\x00\x00\x00"
      "\x45"
      "\x04\x03\x02\x01"
      "\x05\x00\x00\x00"
      "\x02\x00\x00\x00"
      "ab\x02",
      20);
  CHECK(frame == expected);
}

TEST_CASE("unknown types, invalid booleans and false counts are refused by name") {
  CHECK(decode_payload(std::string(1, '\x7f')).error().text == "a message of unknown type 127");
  CHECK(decode_payload(std::string_view("\0", 1)).error().text == "a message of unknown type 0");
  std::string lying("\x42", 1);  // OpenStore whose list claims 65,536 addresses and holds none
  lying += std::string("\0\0\0\0\1\0\0\0\0\0\0\0\0", 13) + std::string("\0\0\1\0", 4);
  const auto result = decode_payload(lying);
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().text == "a malformed OpenStore message of 18 bytes");
}

/// Returns the values of the byte at `at` of the payload with which it is decoded, and encoded again.
std::vector<int> accepted(const Message& message, std::size_t at) {
  std::string payload = payload_of(message);
  std::vector<int> values;
  for (int value = 0; value < 256; ++value) {
    payload[at] = static_cast<char>(value);
    const auto back = decode_payload(payload);
    if (back && payload_of(*back) == payload) values.push_back(value);
    if (!back) CHECK(back.error().code == ErrorCode::kProtocol);
  }
  return values;
}

TEST_CASE("an enum keeps its number on the wire, and a number without a name is refused") {
  CHECK(accepted(Refused{}, 1) == std::vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(accepted(OpenStore{}, 5) == std::vector{1, 2});
  CHECK(accepted(JobStart{}, 9) == std::vector{0, 1, 2, 3, 4});
  CHECK(accepted(NodeCheck{}, 9) == std::vector{0, 1, 2, 3, 4});
  CHECK(decode_payload(std::string_view("\x03\x0d\0\0\0\0\0\0\0\0", 10)).error().text ==
        "a malformed Refused message of 10 bytes");
}

TEST_CASE("output points into the payload and is not copied") {
  const std::string payload = payload_of(Output{1, 2, 2, 7, "hello"});
  const auto back = decode_payload(payload);
  REQUIRE(back.has_value());
  const auto& output = std::get<Output>(*back);
  CHECK(output.data == "hello");
  CHECK(output.data.data() == payload.data() + payload.size() - 5);
}

TEST_CASE("texts and lists of an agent are cut where they are sent, and refused where they are too long") {
  const std::string long_text(kMaxFrame, 'x');
  const auto decoded = [](const Message& message) { return decode_payload(payload_of(message)).value(); };
  CHECK(std::get<Refused>(decoded(Refused{ErrorCode::kUnreachable, 0, long_text})).text.size() ==
        kMaxAgentText);
  CHECK(std::get<StoreOpened>(decoded(StoreOpened{0, 1, long_text})).token.size() == kMaxAgentText);
  CHECK(std::get<WorkerEvidence>(decoded(WorkerEvidence{0, 1, {}, {}, long_text})).error_json.size() ==
        kMaxAgentEvidence);
  CHECK(std::get<WorkerCollectives>(decoded(WorkerCollectives{0, 1, long_text})).log.size() == kMaxAgentDump);
  Hello hello;
  hello.interfaces.resize(kMaxInterfaces + 1);
  CHECK(std::get<Hello>(decoded(hello)).interfaces.size() == kMaxInterfaces);
  const std::string text = std::string(kMaxFrame / 2, 'x');
  CHECK(std::get<Stop>(decoded(Stop{0, 0, text})).reason.size() == text.size());  // the master's own

  // The same frame with one byte more than allowed.
  std::string payload = payload_of(Notice{std::string(kMaxAgentText, 'x'), false});
  REQUIRE(decode_payload(payload).has_value());
  payload.insert(payload.size() - 1, "x");
  ++payload[1];
  CHECK(decode_payload(payload).error().text.find("a malformed Notice") == 0);
}

/// Gives each field a value of its own, and each list two elements.
struct Filler {
  unsigned next = 1;

  void operator()(bool& value) { value = true; }
  template <class T>
  requires std::is_enum_v<T>
  void operator()(T& value) { value = static_cast<T>(1); }
  template <std::integral T>
  void operator()(T& value) {
    value = static_cast<T>(next++ * 0x0101010101010101ull);
  }
  void operator()(std::string& value) { value = "text " + std::to_string(next++) + std::string("\0\xff", 2); }
  void operator()(std::string_view& value) { value = "a view"; }
  template <class A, class B>
  void operator()(std::pair<A, B>& value) {
    (*this)(value.first), (*this)(value.second);
  }
  template <class T>
  void operator()(std::vector<T>& list) {
    for (int i = 0; i < 2; ++i)
      (*this)(list.emplace_back());
  }
  template <class T>
  requires std::is_aggregate_v<T>
  void operator()(T& value) {
    boost::pfr::for_each_field(value, [this](auto& field) { (*this)(field); });
  }
};

/// Collects the values of all fields, in order.
struct FieldTexts {
  std::vector<std::string> texts;

  template <class T>
  requires std::integral<T> || std::is_enum_v<T>
  void operator()(const T& value) { texts.push_back(std::to_string(static_cast<long long>(value))); }
  void operator()(const std::string_view& value) { texts.emplace_back(value); }
  void operator()(const std::string& value) { texts.push_back(value); }
  template <class A, class B>
  void operator()(const std::pair<A, B>& value) {
    (*this)(value.first), (*this)(value.second);
  }
  template <class T>
  void operator()(const std::vector<T>& list) {
    for (const T& element : list)
      (*this)(element);
  }
  template <class T>
  requires std::is_aggregate_v<T>
  void operator()(const T& value) {
    boost::pfr::for_each_field(value, [this](auto& field) { (*this)(field); });
  }
};

std::vector<std::string> field_texts(const Message& message) {
  FieldTexts fields;
  std::visit(fields, message);
  return fields.texts;
}

/// Returns each message twice: as it is made, and with a value in each field.
template <std::size_t... Index>
std::vector<Message> two_of_each(std::index_sequence<Index...>) {
  std::vector<Message> messages;
  (messages.emplace_back(std::in_place_index<Index>), ...);
  (std::visit(Filler{}, messages.emplace_back(std::in_place_index<Index>)), ...);
  return messages;
}

TEST_CASE("every message survives its encoding, has a size and a name, and is refused if it is cut") {
  std::multiset<std::string_view> names;
  for (const Message& message : two_of_each(std::make_index_sequence<std::variant_size_v<Message>>{})) {
    CAPTURE(message_name(message));
    names.insert(message_name(message));
    CHECK(names.count(message_name(message)) <= 2);
    std::string frame;
    append_frame(message, frame);
    CHECK(frame.size() == frame_size(message));
    const std::string_view payload = std::string_view(frame).substr(kFrameHeader);
    const auto back = decode_payload(payload);
    REQUIRE(back.has_value());
    REQUIRE(back->index() == message.index());
    CHECK(field_texts(*back) == field_texts(message));
    for (std::size_t size = 0; size < payload.size(); ++size)
      REQUIRE(decode_payload(payload.substr(0, size)).error().code == ErrorCode::kProtocol);
    CHECK_FALSE(decode_payload(std::string(payload) + "x").has_value());
  }
  CHECK(names.contains("Hello"));
  CHECK(names.contains("AttemptRevoked"));
  CHECK(names.contains("CancelQuery"));
}

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

template <class M>
M cleaned(const M& of_a_node) {
  Message message = of_a_node;
  clean_texts(message);
  return std::get<M>(message);
}

TEST_CASE("control characters do not reach a terminal") {
  std::string text = "plain text\n\tof two lines \xc3\xa9 \033[2J \xc2\x9b\xe2\x80\xae\x7f";
  clean_text(text);
  CHECK(text == "plain text\n\tof two lines \xc3\xa9 ?[2J ???");
}

TEST_CASE("the texts of a message are cleaned, except output and logs of workers") {
  Hello hello;
  hello.hostname = "a\033b";
  hello.interfaces.resize(1);
  hello.interfaces[0].name = "eth\r0";
  CHECK(cleaned(hello).hostname == "a?b");
  CHECK(cleaned(hello).interfaces[0].name == "eth?0");

  WorkerEvidence evidence;
  evidence.oom = "\033";
  evidence.error_json = "{\r\n}";
  CHECK(cleaned(evidence).oom == "?");
  CHECK(cleaned(evidence).error_json == "{\r\n}");
  evidence.oom = "a\nddplaunch: exit 0";
  evidence.xid = "Xid 79\nXid 43";
  CHECK(cleaned(evidence).oom == "a\\nddplaunch: exit 0");
  CHECK(cleaned(evidence).xid == "Xid 79\nXid 43");
  CHECK(cleaned(Output{0, 0, 1, 0, "\033[31m"}).data == "\033[31m");
  CHECK(cleaned(WorkerCollectives{0, 1, "{}\n{}\n"}).log == "{}\n{}\n");
}

TEST_CASE("no text of a node or worker starts a line of its own") {
  CHECK(cleaned(Notice{"quiet\r\nddplaunch: exit 0", false}).text == "quiet?\\nddplaunch: exit 0");
  CHECK(cleaned(WorkerInTrouble{0, 0, "lost\nddplaunch: exit 0", {}}).text == "lost\\nddplaunch: exit 0");
  CHECK(cleaned(Refused{ErrorCode::kUsage, 0, "setup failed; its last lines:\n  one\n\nddplaunch: exit 0\n"})
            .text == "setup failed; its last lines:\n  one\n  \n  ddplaunch: exit 0\n  ");

  NodeChecked checked;
  checked.program_trouble = "none\nddplaunch: exit 0";
  checked.environment_trouble = "setup failed; its last lines:\n  one\nddplaunch: exit 0";
  CHECK(cleaned(checked).program_trouble == "none\\nddplaunch: exit 0");
  CHECK(cleaned(checked).environment_trouble == "setup failed; its last lines:\n  one\n  ddplaunch: exit 0");

  Inspection inspection;
  inspection.state = "sleeping\nddplaunch: exit 0";
  inspection.text = "one\ntwo\n";
  CHECK(cleaned(inspection).state == "sleeping\\nddplaunch: exit 0");
  CHECK(cleaned(inspection).text == "one\ntwo\n");
}

}  // namespace
}  // namespace ddp::rendezvous
