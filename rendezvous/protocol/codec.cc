#include "rendezvous/protocol/codec.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <boost/pfr/core.hpp>

#include "base/block_pool.h"
#include "base/result.h"
#include "base/text.h"

namespace ddp::rendezvous {
namespace {

/// Types from here on go from the master to an agent.
constexpr std::uint8_t kFirstMasterType = 0x41;

/// Limits of one message's fields.
struct FieldLimits {
  std::size_t text = kMaxFrame;
  std::size_t list = kMaxListElements;
};

/// Messages to an agent come from the master, which the agent obeys anyway. They have the limit of a frame.
template <class T>
constexpr FieldLimits limits_of() {
  if (T::kType >= kFirstMasterType) return {};
  if (std::is_same_v<T, Hello>) return {kMaxAgentText, kMaxInterfaces};
  if (std::is_same_v<T, Output>) return {kMaxOutputData, 0};
  if (std::is_same_v<T, WorkerExited>) return {kMaxExitText, 0};
  if (std::is_same_v<T, WorkerCollectives>) return {kMaxAgentDump, 0};
  if (std::is_same_v<T, WorkerSteps>) return {kMaxPhase, kMaxAgentList};
  if (std::is_same_v<T, NodeSample>) return {0, kMaxGpus};
  constexpr bool has_evidence = std::is_same_v<T, WorkerEvidence> || std::is_same_v<T, Inspection> ||
                                std::is_same_v<T, QueryAnswer> || std::is_same_v<T, NodeChecked>;
  return {has_evidence ? kMaxAgentEvidence : kMaxAgentText, kMaxAgentList};
}

/// The other end refuses a longer frame. Texts of users make the other messages long, and NodeChecked.
template <class T>
constexpr bool has_frame_limit = T::kType < kFirstMasterType && !std::is_same_v<T, NodeChecked>;

/// Returns whether Value is one of its enum's names, from the compiler's name of this function: "(ddp::E)5"
/// stands there for a number without a name.
template <auto Value>
constexpr bool has_name() {
  return std::string_view(__PRETTY_FUNCTION__).find("= (") == std::string_view::npos;
}

/// For each byte, whether it is a value of the enum E.
template <class E>
constexpr auto kValues = []<std::size_t... Byte>(std::index_sequence<Byte...>) {
  return std::array<bool, 256>{has_name<static_cast<E>(Byte)>()...};
}
(std::make_index_sequence<256>{});

/// Appends fields to a string, cut to the limits.
class Writer {
 public:
  Writer(std::string& out, FieldLimits limits) : out_(out), limits_(limits) {}

  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) void operator()(const T& value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      // Little-endian, whatever the machine is (docs/developers/protocol.md).
      out_.push_back(static_cast<char>(value >> (8 * i)));
  }
  void operator()(const std::int32_t& value) { (*this)(static_cast<std::uint32_t>(value)); }
  template <class T>
  requires std::is_enum_v<T> || std::same_as<T, bool>
  void operator()(const T& value) { (*this)(static_cast<std::uint8_t>(value)); }
  void operator()(const std::string_view& value) {
    const std::string_view kept = value.substr(0, limits_.text);
    (*this)(static_cast<std::uint32_t>(kept.size()));
    out_.append(kept);
  }
  void operator()(const std::string& value) { (*this)(std::string_view(value)); }
  template <class A, class B>
  void operator()(const std::pair<A, B>& value) {
    (*this)(value.first), (*this)(value.second);
  }
  template <class T>
  void operator()(const std::vector<T>& list) {
    const std::size_t count = std::min(list.size(), limits_.list);
    (*this)(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i)
      (*this)(list[i]);
  }
  template <class T>
  requires std::is_aggregate_v<T>
  void operator()(const T& value) {
    boost::pfr::for_each_field(value, [this](auto& field) { (*this)(field); });
  }

 private:
  std::string& out_;
  const FieldLimits limits_;
};

/// Adds up the encoded sizes of fields.
class SizeCounter {
 public:
  std::size_t size = 0;

  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void operator()(const T&) { size += std::is_enum_v<T> ? 1 : sizeof(T); }
  void operator()(const std::string_view& value) { size += sizeof(std::uint32_t) + value.size(); }
  void operator()(const std::string& value) { (*this)(std::string_view(value)); }
  template <class A, class B>
  void operator()(const std::pair<A, B>& value) {
    (*this)(value.first), (*this)(value.second);
  }
  template <class T>
  void operator()(const std::vector<T>& list) {
    size += sizeof(std::uint32_t);
    for (const T& element : list)
      (*this)(element);
  }
  template <class T>
  requires std::is_aggregate_v<T>
  void operator()(const T& value) {
    boost::pfr::for_each_field(value, [this](auto& field) { (*this)(field); });
  }
};

/// Takes fields from a payload. After the first invalid field, all further fields read as zero and `failed()`
/// is true.
class FieldReader {
 public:
  FieldReader(std::string_view in, FieldLimits limits) : in_(in), limits_(limits) {}

  bool failed() const { return failed_; }
  bool at_end() const { return in_.empty(); }

  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) void operator()(T& value) {
    value = 0;
    const std::string_view bytes = read_bytes(sizeof(T));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value = static_cast<T>(value | (static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i)));
    }
  }
  void operator()(std::int32_t& value) {
    std::uint32_t raw = 0;
    (*this)(raw);
    value = static_cast<std::int32_t>(raw);
  }
  void operator()(bool& value) {
    std::uint8_t raw = 0;
    (*this)(raw);
    if (raw > 1) failed_ = true;
    value = raw == 1;
  }
  template <class E>
  requires std::is_enum_v<E>
  void operator()(E& value) {
    std::uint8_t raw = 0;
    (*this)(raw);
    if (!kValues<E>[raw]) failed_ = true;
    value = failed_ ? E{} : static_cast<E>(raw);
  }
  void operator()(std::string_view& value) {
    std::uint32_t size = 0;
    (*this)(size);
    if (size > limits_.text) failed_ = true;
    value = read_bytes(size);
  }
  void operator()(std::string& value) {
    std::string_view view;
    (*this)(view);
    value = view;
  }
  template <class A, class B>
  void operator()(std::pair<A, B>& value) {
    (*this)(value.first), (*this)(value.second);
  }
  template <class T>
  void operator()(std::vector<T>& list) {
    std::uint32_t count = 0;
    (*this)(count);
    // An element takes at least one byte, so a count beyond the remaining bytes is invalid. Check it before
    // reserving memory.
    if (count > limits_.list || count > in_.size()) failed_ = true;
    for (std::uint32_t i = 0; i < count && !failed_; ++i)
      (*this)(list.emplace_back());
  }
  template <class T>
  requires std::is_aggregate_v<T>
  void operator()(T& value) {
    boost::pfr::for_each_field(value, [this](auto& field) { (*this)(field); });
  }

 private:
  std::string_view read_bytes(std::size_t count) {
    if (failed_ || count > in_.size()) {
      failed_ = true;
      return {};
    }
    const std::string_view bytes = in_.substr(0, count);
    in_.remove_prefix(count);
    return bytes;
  }

  std::string_view in_;
  const FieldLimits limits_;
  bool failed_ = false;
};

/// Returns the name of T without its namespace, from the compiler's name of this function: "… [with T =
/// ddp::rendezvous::Hello; …]", and in Clang "… [T = ddp::rendezvous::Hello]".
template <class T>
constexpr std::string_view type_name() {
  std::string_view name = __PRETTY_FUNCTION__;
  name.remove_prefix(name.find("T = "));
  name = name.substr(0, name.find_first_of(";]"));
  return name.substr(name.rfind(':') + 1);
}

using Decoder = bool (*)(std::string_view, Message&);

template <class T>
bool decode_as(std::string_view fields, Message& out) {
  FieldReader reader(fields, limits_of<T>());
  reader(out.emplace<T>());
  // Surplus bytes are an error, too: a field that only one end knows must not pass unnoticed.
  return !reader.failed() && reader.at_end();
}

/// Type number → decoder, built from the list of messages, so that no second table must be kept in step.
template <std::size_t... Index>
constexpr std::array<Decoder, 256> make_decoders(std::index_sequence<Index...>) {
  std::array<Decoder, 256> table{};
  ((table[std::variant_alternative_t<Index, Message>::kType] =
        &decode_as<std::variant_alternative_t<Index, Message>>),
   ...);
  return table;
}

template <std::size_t... Index>
constexpr bool types_are_distinct(std::index_sequence<Index...>) {
  std::array<int, 256> seen{};
  (++seen[std::variant_alternative_t<Index, Message>::kType], ...);
  for (const int count : seen) {
    if (count > 1) return false;
  }
  return seen[0] == 0;
}

using AllMessages = std::make_index_sequence<std::variant_size_v<Message>>;
static_assert(types_are_distinct(AllMessages{}),
              "two messages share a type number, or one uses the reserved zero");
constexpr std::array<Decoder, 256> kDecoders = make_decoders(AllMessages{});

}  // namespace

void append_frame(const Message& message, std::string& out) {
  const std::size_t start = out.size();
  out.append(kFrameHeader, '\0');
  std::visit(
      [&](const auto& m) {
        using T = std::decay_t<decltype(m)>;
        Writer writer(out, limits_of<T>());
        writer(T::kType);
        writer(m);
        if constexpr (has_frame_limit<T>)
          DDP_REQUIRE(out.size() - start <= kFrameHeader + kMaxAgentFrame, message_name(message),
                      out.size() - start);
      },
      message);
  const auto length = static_cast<std::uint32_t>(out.size() - start - kFrameHeader);
  for (std::size_t i = 0; i < kFrameHeader; ++i)
    out[start + i] = static_cast<char>(length >> (8 * i));
}

void write_output_header(const Output& output, char* at) {
  DDP_REQUIRE(output.data.size() <= kMaxOutputData, output.data.size());
  const auto put = [&at](auto value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      *at++ = static_cast<char>(value >> (8 * i));
  };
  const auto size = static_cast<std::uint32_t>(output.data.size());
  put(static_cast<std::uint32_t>(kOutputHeader - kFrameHeader + size));
  put(Output::kType);
  put(output.attempt), put(output.rank), put(output.stream), put(output.clock_ns), put(size);
}

Result<Message> decode_payload(std::string_view payload) {
  if (payload.empty()) return Error{ErrorCode::kProtocol, "an empty frame"};
  const auto type = static_cast<unsigned char>(payload.front());
  const Decoder decode = kDecoders[type];
  if (decode == nullptr) {
    return Error{ErrorCode::kProtocol, "a message of unknown type " + std::to_string(type)};
  }
  Message message;
  if (!decode(payload.substr(1), message)) {
    return Error{ErrorCode::kProtocol, "a malformed " + std::string(message_name(message)) + " message of " +
                                           std::to_string(payload.size()) + " bytes"};
  }
  return message;
}

std::size_t frame_size(const Message& message) {
  SizeCounter counter;
  std::visit([&](const auto& m) { counter(m); }, message);
  return kFrameHeader + 1 + counter.size;
}

std::string_view message_name(const Message& message) {
  return std::visit([](const auto& m) { return type_name<std::decay_t<decltype(m)>>(); }, message);
}

// ---- the texts of messages from nodes

namespace {

/// Applies clean_line to all text fields of a message.
struct Cleaner {
  void operator()(std::string& text) { clean_line(text); }
  template <class A, class B>
  void operator()(std::pair<A, B>& pair) {
    (*this)(pair.first), (*this)(pair.second);
  }
  template <class T>
  void operator()(std::vector<T>& list) {
    for (T& element : list)
      (*this)(element);
  }
  template <class T>
  void operator()(T& value) {
    if constexpr (std::is_aggregate_v<T>)
      boost::pfr::for_each_field(value, [this](auto& field) { (*this)(field); });
  }
};

/// Cleans a text of several lines, such as the last lines of a setup script. Lines are indented, so that none
/// looks like a line of ddplaunch.
void clean_lines(std::string& text) {
  const std::string safe = replace_unsafe(text);
  text.clear();
  for (std::size_t at = 0; at < safe.size(); ++at) {
    text += safe[at];
    if (safe[at] == '\n' && safe.compare(at + 1, 2, "  ") != 0) text += "  ";
  }
}

}  // namespace

void clean_text(std::string& text) {
  text = replace_unsafe(text);
}

void clean_line(std::string& text) {
  text = one_line(replace_unsafe(text));
}

void clean_texts(Message& message) {
  // Bytes of workers are data and stay as they are. A dump of collectives is cleaned where its names are
  // shown (FailureLog).
  if (std::holds_alternative<Output>(message)) return;
  if (auto* inspection = std::get_if<Inspection>(&message)) return clean_line(inspection->state);
  if (auto* refused = std::get_if<Refused>(&message)) return clean_lines(refused->text);
  if (std::holds_alternative<WorkerCollectives>(message)) return;
  if (auto* answer = std::get_if<QueryAnswer>(&message)) return clean_line(answer->trouble);
  if (auto* evidence = std::get_if<WorkerEvidence>(&message)) {
    clean_line(evidence->oom);
    clean_text(evidence->xid);  // separate lines; the report labels each
    return;
  }
  if (auto* checked = std::get_if<NodeChecked>(&message)) {
    std::string environment = std::move(checked->environment_trouble);
    clean_lines(environment);
    Cleaner()(*checked);
    checked->environment_trouble = std::move(environment);
    return;
  }
  std::visit([](auto& m) { Cleaner()(m); }, message);
}

namespace {

/// Maximum size of one read of a busy stream.
constexpr std::size_t kMostRead = BlockPool::kBlockSize / 2;
/// Maximum size of one read while the memory is kept. Such memory is not reused, but a read of this size is
/// worth its system call.
constexpr std::size_t kKeptRead = 64u << 10;
/// Size of the first allocation of an output queue, and limit of the memory that an empty one keeps. A buffer
/// for the windows of both streams is reused while much is written.
constexpr std::size_t kFirst = 128u << 10;
constexpr std::size_t kKept = 4u << 20;

/// Returns the length field at the start of a frame; reads kFrameHeader bytes.
std::uint32_t frame_length(const char* bytes) {
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < kFrameHeader; ++i) {
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return length;
}

}  // namespace

FrameReader::Limits FrameReader::default_limits() {
  return {kMaxFrame, kMostRead};
}

std::span<char> FrameReader::space() {
  if (begin_ == end_ && !kept_) begin_ = end_ = 0;
  std::size_t wanted = kept_ ? std::min(read_size_, kKeptRead) : read_size_;
  // next() has refused lengths over the limit, so a peer cannot make this grow beyond one frame.
  if (end_ - begin_ >= kFrameHeader) {
    const std::size_t whole =
        kFrameHeader + std::min<std::size_t>(frame_length(buffer_.get() + begin_), limits_.frame);
    if (whole > end_ - begin_) wanted = std::max(wanted, whole - (end_ - begin_));
  }
  if (capacity_ - end_ < wanted) make_room(wanted);
  return {buffer_.get() + end_, capacity_ - end_};
}

/// Moves the rest of the last frame to the front, into a larger buffer if necessary.
void FrameReader::make_room(std::size_t wanted) {
  const std::size_t left = end_ - begin_;
  if (kept_ || capacity_ < left + wanted) {
    // Twice the read size, so that the rest of a frame moves only after every second read. The memory is not
    // zeroed: pages that are never read into cost nothing.
    const std::size_t larger = std::max(left + wanted, 2 * read_size_);
    auto fresh = BlockPool::take(larger);
    if (left > 0) std::memcpy(fresh.get(), buffer_.get() + begin_, left);
    buffer_ = std::move(fresh);
    capacity_ = larger;
    kept_ = false;
  } else {
    std::memmove(buffer_.get(), buffer_.get() + begin_, left);
  }
  begin_ = 0;
  end_ = left;
}

std::shared_ptr<const char[]> FrameReader::keep() {
  DDP_REQUIRE(buffer_ && "keep() follows a payload", end_);
  kept_ = true;
  return buffer_;
}

void FrameReader::filled(std::size_t bytes) {
  DDP_REQUIRE(bytes <= capacity_ - end_, bytes, capacity_, end_);
  end_ += bytes;
  // A read that fills its room shows a busy stream.
  if (bytes >= read_size_) read_size_ = std::min(2 * read_size_, limits_.read);
}

Result<std::optional<std::string_view>> FrameReader::next() {
  using Frame = std::optional<std::string_view>;
  DDP_REQUIRE(begin_ <= end_, begin_, end_);
  const std::size_t available = end_ - begin_;
  if (available < kFrameHeader) return Frame{};
  const std::size_t length = frame_length(buffer_.get() + begin_);
  if (length == 0 || length > limits_.frame) {
    return Error{ErrorCode::kProtocol,
                 "a frame of " + std::to_string(length) + " bytes (1 to " + std::to_string(limits_.frame) +
                     " are allowed): the bytes of the link are damaged; check for a wrapper or "
                     "a terminal between the hosts that changes bytes"};
  }
  if (available < kFrameHeader + length) return Frame{};
  const std::string_view payload(buffer_.get() + begin_ + kFrameHeader, length);
  begin_ += kFrameHeader + length;
  return Frame{payload};
}

// ---- output

void OutputQueue::Buffer::reserve(std::size_t more) {
  if (capacity - end >= more) return;
  const std::size_t wanted = std::max({kFirst, 2 * capacity, end + more});
  auto larger = std::make_unique_for_overwrite<char[]>(wanted);  // unused pages cost nothing
  if (!empty()) std::memcpy(larger.get() + begin, bytes.get() + begin, end - begin);
  bytes = std::move(larger);
  capacity = wanted;
}

std::span<char> OutputQueue::space(std::size_t size) {
  DDP_REQUIRE(size <= kMaxOutputData, size);
  filling_.reserve(kOutputHeader + size);
  return {filling_.bytes.get() + filling_.end + kOutputHeader, size};
}

void OutputQueue::commit(const Output& output) {
  DDP_REQUIRE(
      output.data.empty() || output.data.data() == filling_.bytes.get() + filling_.end + kOutputHeader,
      output.rank, output.data.size());
  filling_.reserve(kOutputHeader);  // an end of stream is committed without a space() before
  write_output_header(output, filling_.bytes.get() + filling_.end);
  filling_.end += kOutputHeader + output.data.size();
}

std::string_view OutputQueue::front(std::size_t limit) {
  if (sending_.empty()) {
    if (sending_.capacity > kKept) sending_ = {};
    sending_.begin = sending_.end = 0;
    // Two buffers: what is being sent stays in place while more is committed.
    std::swap(sending_, filling_);
  }
  std::size_t size = 0;
  while (sending_.begin + size < sending_.end) {
    const std::size_t frame = kFrameHeader + frame_length(sending_.bytes.get() + sending_.begin + size);
    // Whole frames only. A control message can then go between any two pieces.
    if (size > 0 && size + frame > limit) break;
    size += frame;
  }
  DDP_REQUIRE(size <= sending_.end - sending_.begin, size, sending_.begin, sending_.end);
  return {sending_.bytes.get() + sending_.begin, size};
}

void OutputQueue::pop(std::size_t bytes) {
  DDP_REQUIRE(bytes <= sending_.end - sending_.begin, bytes, sending_.begin, sending_.end);
  sending_.begin += bytes;
}

}  // namespace ddp::rendezvous
