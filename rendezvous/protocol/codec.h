#pragma once

#include <cstddef>
#include <cstdint>
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

/// Appends the frame of `message` to `out`.
void append_frame(const Message& message, std::string& out);

/// Writes the kOutputHeader bytes that append_frame would write before `output.data`. The data must already
/// follow them.
void write_output_header(const Output& output, char* at);

/// Decodes one frame's payload (type and fields, without the length). string_view members of the result point
/// into `payload`. Error: kProtocol (unknown type, truncated field, count over its limit, surplus bytes).
Result<Message> decode_payload(std::string_view payload);

/// Returns the size of the frame of `message`.
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

}  // namespace ddp::rendezvous
