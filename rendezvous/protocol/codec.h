#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

/// Messages ↔ bytes, one codec for both ends (docs/developers/protocol.md). Little-endian, fixed widths; a
/// string or list is a u32 count and its elements. A frame is: u32 length of the rest, u8 type, fields.
namespace ddp::rendezvous {

/// Limits, checked before any allocation. They bound the memory that a peer can make this end use.
inline constexpr std::size_t kMaxFrame = 8u << 20;  ///< length field; a JobStart carries a whole environment
inline constexpr std::size_t kMaxListElements = 65'536;
// A master has thousands of agents, and each of them may be compromised. What an agent sends is therefore
// smaller. The encoder cuts texts and lists of an agent to these limits, and the decoder refuses more.
inline constexpr std::size_t kMaxAgentFrame = 80u << 10;
inline constexpr std::size_t kMaxAgentText = 16u << 10;      ///< a text, name, path or token of a message
inline constexpr std::size_t kMaxAgentEvidence = 32u << 10;  ///< a text of WorkerEvidence, Inspection,
                                                             ///< QueryAnswer or NodeChecked
inline constexpr std::size_t kMaxExitText = 2u << 10;        ///< WorkerExited::text
inline constexpr std::size_t kMaxAgentDump = 64u << 10;      ///< WorkerCollectives::log
inline constexpr std::size_t kMaxPhase = 256;                ///< a text of WorkerSteps
inline constexpr std::size_t kMaxAgentList = 8'192;          ///< elements: ranks of one node, say
inline constexpr std::size_t kMaxInterfaces = 256;           ///< addresses in a Hello
inline constexpr std::size_t kMaxGpus = 64;                  ///< GPUs in a NodeSample
inline constexpr std::size_t kMaxOutputData = 64u << 10;     ///< data of one Output: control never waits long
inline constexpr std::size_t kFrameHeader = 4;
inline constexpr std::size_t kOutputHeader = 26;  ///< bytes before the data of an Output frame

void append_frame(const Message& message, std::string& out);

/// Writes the kOutputHeader bytes that append_frame would write before `output.data`. The data must already
/// follow them.
void write_output_header(const Output& output, char* at);

/// Decodes one frame's payload (type and fields, without the length). string_view members of the result point
/// into `payload`. Error: kProtocol (unknown type or value, truncated field, count over its limit, surplus
/// bytes).
Result<Message> decode_payload(std::string_view payload);

std::size_t frame_size(const Message& message);

/// Returns the name of a message, for logs: "Hello".
std::string_view message_name(const Message& message);

// ---- the texts of messages from nodes

/// Makes text of another machine safe for a terminal, like replace_unsafe.
void clean_text(std::string& text);

/// Does the same and makes one line, so that such text cannot imitate a line of ddplaunch.
void clean_line(std::string& text);

/// Cleans all texts of a message from a node. The output of workers is left alone, and so are texts that go
/// only to files or to a parser (Inspection::text, WorkerEvidence::error_json, WorkerCollectives::log). So is
/// QueryAnswer::text, which its reader makes safe. Each text becomes one line, except WorkerEvidence::xid,
/// Refused::text and NodeChecked::environment_trouble. The last two have their lines after the first
/// indented.
void clean_texts(Message& message);

/// Splits a byte stream into frames (sans-IO). The driver's duties:
///   1. read bytes into `space()`, then call `filled(n)`;
///   2. take frames with `next()` until it returns nothing, then read again.
/// A payload is valid until the next call of `space()`, or as long as a `keep()` of its memory exists.
/// Memory: at most one frame and twice the largest read, beside kept memory.
class FrameReader {
 public:
  struct Limits {
    std::size_t frame;  ///< a longer frame is an error
    std::size_t read;   ///< the largest read of a busy stream; at least 16 KiB
  };
  static Limits default_limits();

  explicit FrameReader(Limits limits = default_limits()) : limits_(limits) {}

  /// Returns room for the next read: at least 16 KiB and the missing bytes of the current frame; more on a
  /// stream that fills it.
  std::span<char> space();
  void filled(std::size_t bytes);

  /// Returns the next whole frame's payload (type and fields), or nothing when more bytes are needed. Error:
  /// kProtocol, the length is zero or over the limit; the stream cannot be read further.
  Result<std::optional<std::string_view>> next();
  /// Shares the memory of the payloads returned since the last `space()`. Any thread may release the last
  /// share.
  std::shared_ptr<const char[]> keep();

 private:
  static constexpr std::size_t kFirstRead = 16u << 10;
  void make_room(std::size_t wanted);

  const Limits limits_;
  std::shared_ptr<char[]> buffer_;
  bool kept_ = false;  ///< buffer_ may be shared, so bytes that were read must not move
  std::size_t capacity_ = 0;
  std::size_t read_size_ = kFirstRead;  ///< doubles while reads fill it
  std::size_t begin_ = 0;               ///< first byte not yet handed out
  std::size_t end_ = 0;                 ///< one past the last byte read
};

/// Frames of worker output that wait to be sent (sans-IO). They are built in place: bytes are read from the
/// worker directly into the frame. The owner's duties:
///   1. read into `space()`, then `commit()` the bytes before the next call of space;
///   2. send `front()`, then `pop()` it. Send each piece whole before sending anything else.
/// The queue is not bounded: the callers keep to their credit, and at a stop to the contents of the workers'
/// pipes. It keeps little memory once it is empty.
class OutputQueue {
 public:
  /// Returns room for the data of the next frame, `size` bytes (kMaxOutputData at most).
  std::span<char> space(std::size_t size);
  /// Completes that frame; `output.data` is the beginning of the space, or empty.
  void commit(const Output& output);

  /// Returns whole frames to send next: as many as fit into `limit` bytes, but at least one; empty: the queue
  /// is empty. They stay in place until pop(), even if more is committed.
  std::string_view front(std::size_t limit);
  void pop(std::size_t bytes);
  bool empty() const { return sending_.empty() && filling_.empty(); }

 private:
  struct Buffer {
    std::unique_ptr<char[]> bytes;
    std::size_t capacity = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
    bool empty() const { return begin == end; }
    void reserve(std::size_t more);
  };
  Buffer filling_;
  Buffer sending_;
};

}  // namespace ddp::rendezvous
