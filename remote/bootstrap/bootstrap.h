#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddp::remote {

/// The agent's first line on stdout: "ddplaunchd-hello <protocol> <version>\n" (docs/protocol.md). Everything
/// after its newline is the framed protocol. What stands before it was written by the host's login shell or
/// its start-up files.
inline constexpr std::string_view kHelloPrefix = "ddplaunchd-hello ";
/// The lines of a host that is to be given the agent (docs/protocol.md): "ddplaunchd-need MACHINE CODE …",
/// "ddplaunchd-send INDEX", "ddplaunchd-fail REASON"; and of one where it begins: "ddplaunchd-runs PATH".
inline constexpr std::string_view kNeedPrefix = "ddplaunchd-need ";
inline constexpr std::string_view kSendPrefix = "ddplaunchd-send ";
inline constexpr std::string_view kFailPrefix = "ddplaunchd-fail ";
inline constexpr std::string_view kRunsPrefix = "ddplaunchd-runs ";
inline constexpr std::size_t kBootstrapLimit =
    64 * 1024;                                  ///< bytes of stdout that may come before the greeting ends
inline constexpr std::size_t kNoiseLines = 20;  ///< lines of each stream that are kept to be shown

struct AgentHello {
  int protocol = 0;
  std::string version;
};

/// What a host answered that has no agent of this build.
struct AgentNeed {
  std::string machine;  ///< as `uname -m` has it
  std::vector<int>
      attempts;  ///< how each look at an agent ended, the installed one first (kSameVersion, 127, …)
};
/// The answer of `ddplaunchd --fits` when protocol and version are ours, and only the build is not.
inline constexpr int kSameVersion = 3;

/// The line that an agent writes, and that Bootstrap reads.
std::string hello_line(const AgentHello& hello);

/// The last lines of a text stream, made safe to print: control bytes become '?', long lines are cut.
class TailLines {
 public:
  void feed(std::string_view bytes);
  /// The kept lines, an unfinished last one included, each after a newline and `indent`; empty if there are
  /// none.
  std::string text(std::string_view indent = "  ") const;
  std::deque<std::string> lines() const;
  bool contains(std::string_view words) const;
  bool empty() const { return lines_.empty() && open_.empty(); }

 private:
  void finish_line();
  std::deque<std::string> lines_;
  std::string open_;
};

/// Sans-IO: reads a remote command's stdout until the agent's greeting, and words the diagnosis when none
/// comes.
///
/// The driver's duties: 1. feed every byte of stdout, until feed() is no longer kReading; 2. feed stderr as
/// it comes; 3. at kNeed send the script, at kSend the file, and then call go_on(); 4. at end of file, at the
/// deadline, or at kFailed ask ended(), timed_out() or failure() for the Error, once.
class Bootstrap {
 public:
  enum class State { kReading, kNeed, kSend, kHello, kFailed };
  /// What the command was: the agent itself, executed by us; given_lookup(); first_lookup(), so that the host
  /// may ask for the agent.
  enum class Lookup { kNone, kGiven, kPush };

  /// `host` is the name the user knows; `agent` is the path the agent was looked for at. `intermediary` is
  /// what has to work before the lookup begins, as text: "the login shell there".
  Bootstrap(std::string host, std::string agent, Lookup lookup = Lookup::kNone,
            std::string intermediary = "the login shell there");

  State feed(std::string_view bytes);
  void feed_errors(std::string_view bytes) { errors_.feed(bytes); }

  State state() const { return state_; }
  const AgentHello& hello() const { return hello_; }
  const AgentNeed& need() const { return need_; }    ///< from kNeed on
  std::size_t wanted_file() const { return sent_; }  ///< at kSend: the index; each comes once, in order
  /// Reads what came behind the line of kNeed or kSend. Once for each of them.
  State go_on();
  /// The path of the agent that began, as the host told it; empty: none did, or nobody looked.
  const std::string& began() const { return began_; }
  /// Bytes that came after the greeting: the start of the framed protocol.
  const std::string& rest() const { return rest_; }
  /// What the host said before the greeting, for showing as the host's own words.
  std::deque<std::string> noise() const { return noise_.lines(); }

  /// Why feed() failed: a damaged greeting, or too much before it (kAgentMismatch); the host cannot take the
  /// agent (kAgentMissing).
  Error failure() const;
  /// stdout ended before the greeting. `status` as a shell has it (128+n for signals), unset when the
  /// connection broke. kUnreachable when nothing of ours has spoken: the way there failed. Else kAgentMissing
  /// when there is no such program, kAgentMismatch.
  Error ended(std::optional<int> status) const;
  Error timed_out() const;  ///< kTimeout

 private:
  void read_line(const std::string& line);
  void read_hello(std::string_view line);
  void read_need(std::string_view words);
  void read_send(std::string_view words);
  void damage(std::string_view line);
  std::string last_lines() const;

  std::string host_;
  std::string agent_;
  Lookup lookup_;
  std::string intermediary_;
  std::string began_;
  State state_ = State::kReading;
  std::string pending_;  ///< the line being read
  std::size_t consumed_ = 0;
  std::string damaged_;   ///< a greeting that could not be read
  std::string refused_;   ///< the host's own words why it cannot take the agent
  bool spoken_ = false;   ///< a line of ours came: what lies between works
  bool printed_ = false;  ///< a line of ours came that no shell has read
  bool asked_ = false;    ///< kNeed was reached
  std::size_t sent_ = 0;  ///< files asked for before this one
  AgentNeed need_;
  AgentHello hello_;
  std::string rest_;
  TailLines noise_;
  TailLines errors_;
};

/// Nothing, or kAgentMismatch when an agent speaks another protocol or has another version than this program.
Result<void> check_hello(const std::string& host, const AgentHello& theirs, const AgentHello& ours);

}  // namespace ddp::remote
