#include "rendezvous/protocol/codec.h"

#include <concepts>
#include <cstddef>
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

JobStart sample_job() {
  JobStart job;
  job.job_id = "j1";
  job.host = "gpu01";
  job.command_kind = 2;
  job.argv = {"train.py", "--lr", "0.1", std::string("\0\n\xff", 3)};
  job.env = {{"A", ""}, {"B", "x=y"}};
  job.devices = {"0", "2"};
  job.local = true;
  job.credit = 262144;
  job.setup = {"module load cuda\n", ""};
  return job;
}

TEST_CASE("a message with every kind of field survives its encoding") {
  const JobStart job = sample_job();
  const std::string payload = payload_of(job);
  const auto back = decode_payload(payload);
  REQUIRE(back.has_value());
  const auto& got = std::get<JobStart>(*back);
  CHECK(got.job_id == job.job_id);
  CHECK(got.argv == job.argv);
  CHECK(got.env == job.env);
  CHECK(got.devices == job.devices);
  CHECK(got.local);
  CHECK(got.credit == job.credit);
  CHECK(got.setup == job.setup);

  Hello hello;
  hello.hostname = "n";
  hello.clock_ns = 0x0123456789abcdefull;
  hello.interfaces = {{"eth0", "10.0.0.1", 24, true, false}, {"lo", "127.0.0.1", 8, true, true}};
  const std::string hello_payload = payload_of(hello);
  const auto hello_back = decode_payload(hello_payload);
  REQUIRE(hello_back.has_value());
  CHECK(std::get<Hello>(*hello_back).clock_ns == hello.clock_ns);
  REQUIRE(std::get<Hello>(*hello_back).interfaces.size() == 2);
  CHECK(std::get<Hello>(*hello_back).interfaces[1].loopback);
  CHECK(std::get<Hello>(*hello_back).workers == 0);
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

TEST_CASE("every truncation and every extra byte of a message is refused") {
  const std::string payload = payload_of(sample_job());
  for (std::size_t size = 0; size < payload.size(); ++size) {
    const auto result = decode_payload(std::string_view(payload).substr(0, size));
    REQUIRE_FALSE(result.has_value());
    REQUIRE(result.error().code == ErrorCode::kProtocol);
  }
  CHECK_FALSE(decode_payload(payload + "x").has_value());
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
  CHECK(std::get<Refused>(decoded(Refused{1, 0, long_text})).text.size() == kMaxAgentText);
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

  template <std::integral T>
  void operator()(const T& value) {
    texts.push_back(std::to_string(value));
  }
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

template <std::size_t... Index>
std::vector<Message> one_of_each(std::index_sequence<Index...>) {
  std::vector<Message> messages;
  (messages.emplace_back(std::in_place_index<Index>), ...);
  for (Message& message : messages)
    std::visit(Filler{}, message);
  return messages;
}

TEST_CASE("every message survives its encoding, has a size and a name, and is refused if it is cut") {
  std::set<std::string_view> names;
  for (const Message& message : one_of_each(std::make_index_sequence<std::variant_size_v<Message>>{})) {
    CAPTURE(message_name(message));
    CHECK(names.insert(message_name(message)).second);
    std::string frame;
    append_frame(message, frame);
    CHECK(frame.size() == frame_size(message));
    const std::string_view payload = std::string_view(frame).substr(kFrameHeader);
    const auto back = decode_payload(payload);
    REQUIRE(back.has_value());
    REQUIRE(back->index() == message.index());
    CHECK(field_texts(*back) == field_texts(message));
    for (std::size_t size = 0; size < payload.size(); ++size)
      REQUIRE_FALSE(decode_payload(payload.substr(0, size)).has_value());
    CHECK_FALSE(decode_payload(std::string(payload) + "x").has_value());
  }
  CHECK(names.contains("Hello"));
  CHECK(names.contains("AttemptRevoked"));
  CHECK(names.contains("CancelQuery"));
}

}  // namespace
}  // namespace ddp::rendezvous
